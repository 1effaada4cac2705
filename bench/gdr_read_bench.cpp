// SPDX-License-Identifier: Apache-2.0
// GDRCopy's reads by the libgdrapi.so.2 that the loader finds: the same program compares two of them. Then reads of random
// sizes and places, every byte compared.
//
//     LD_LIBRARY_PATH=FOLDER gdr_read_bench [SECONDS]      of random reads [5]
#include <gdrapi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "base/clock.hpp"
#include "cuda/driver_table.hpp"

namespace {

using namespace pl;

void need(bool is_right, const char* step) {
  if (is_right) return;
  std::printf("FAILED: %s\n", step);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::size_t kBytes = 16u << 20;
  const auto found = cu::driver();
  need(found.ok() && cu::initialize(**found).ok(), "cuInit");
  const cu::driver_table& cuda = **found;
  cu::context_t context = nullptr;
  cu::device_ptr device = 0;
  need(cuda.cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuda.cuCtxSetCurrent(context) == 0, "context");
  need(cuda.cuMemAlloc_v2(&device, kBytes) == 0, "cuMemAlloc");
  unsigned flag = 1;
  need(cuda.cuPointerSetAttribute(&flag, 6, device) == 0, "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS");
  gdr_t library = gdr_open();
  need(library != nullptr, "gdr_open");
  gdr_mh_t handle{};
  void* view = nullptr;
  need(gdr_pin_buffer(library, device, kBytes, 0, 0, &handle) == 0, "gdr_pin_buffer");
  need(gdr_map(library, handle, &view, kBytes) == 0, "gdr_map");
  gdr_info_t info{};
  need(gdr_get_info(library, handle, &info) == 0, "gdr_get_info");
  auto* const mapped = static_cast<std::byte*>(view) + (device - info.va);
  std::vector<unsigned char> data(kBytes), got(kBytes + 1);
  for (std::size_t i = 0; i < kBytes; ++i) data[i] = static_cast<unsigned char>(i * 31 >> 3);
  need(cuda.cuMemcpyHtoD_v2(device, data.data(), kBytes) == 0, "cuMemcpyHtoD");
  std::printf("gdr_copy_from_mapping, us p50 (p99)\n");
  for (std::size_t size = 64; size <= kBytes; size *= 4) {
    std::vector<double> us;
    std::size_t wrong = 0;
    for (int i = 0; i < (size > 200'000 ? 100 : 2000); ++i) {
      const std::uint64_t begin = ticks_ordered();
      need(gdr_copy_from_mapping(handle, got.data(), mapped, size) == 0, "gdr_copy_from_mapping");
      us.push_back(ticks_to_ns(ticks_ordered() - begin) / 1e3);
      wrong += std::memcmp(got.data(), data.data(), size) != 0;
      std::memset(got.data(), 0, size);
    }
    std::sort(us.begin(), us.end());
    std::printf("%9zu %9.2f (%9.2f)%s\n", size, us[us.size() / 2], us[us.size() * 99 / 100], wrong != 0 ? " WRONG" : "");
  }
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  std::mt19937_64 random(1);
  std::size_t reads = 0, wrong = 0;
  for (const std::uint64_t end_ns = monotonic_ns() + static_cast<std::uint64_t>(seconds * 1e9); monotonic_ns() < end_ns;
       ++reads) {
    const std::size_t size = 1 + random() % (reads % 64 == 0 ? 1u << 20 : 24u << 10), offset = random() % (kBytes - size);
    got[size] = 0xa5;
    need(gdr_copy_from_mapping(handle, got.data(), mapped + offset, size) == 0, "gdr_copy_from_mapping");
    wrong += std::memcmp(got.data(), data.data() + offset, size) != 0 || got[size] != 0xa5;
    std::memset(got.data(), 0, size);
  }
  std::printf("%zu reads of random sizes and places, %zu wrong\n", reads, wrong);
  gdr_unmap(library, handle, view, kBytes);
  gdr_unpin_buffer(library, handle);
  gdr_close(library);
  return wrong == 0 ? 0 : 1;
}
