// SPDX-License-Identifier: Apache-2.0
#include "test/support/sim_fixture.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace pl::test {
namespace {

void* g_library = nullptr;

void must(cu::result_t rc, const char* operation) {
  if (rc == 0) return;
  std::fprintf(stderr, "simulated CUDA: %s failed with %d\n", operation, rc);
  std::abort();
}

}  // namespace

const cu::driver_table& simulated_cuda() {
  static const cu::driver_table* table = [] {
    g_library = dlopen(PL_SIM_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (g_library == nullptr) {
      std::fprintf(stderr, "cannot load the simulated GPU: %s\n", dlerror());
      std::abort();
    }
    auto found = cu::driver();
    if (!found || !(*found)->is_simulated) std::abort();
    must((*found)->cuInit(0), "cuInit");
    return *found;
  }();
  return *table;
}

int sim_object_fd(unsigned client, unsigned object) {
  simulated_cuda();
  static const auto call = reinterpret_cast<int (*)(unsigned, unsigned)>(dlsym(g_library, "peerlaneSimObjectFd"));
  return call(client, object);
}

std::uint64_t sim_object_bytes(unsigned client, unsigned object) {
  simulated_cuda();
  static const auto call =
      reinterpret_cast<unsigned long long (*)(unsigned, unsigned)>(dlsym(g_library, "peerlaneSimObjectBytes"));
  return call(client, object);
}

current_device::current_device(int ordinal) : ordinal_(ordinal) {
  cu::context_t context = nullptr;
  must(simulated_cuda().cuDevicePrimaryCtxRetain(&context, ordinal), "cuDevicePrimaryCtxRetain");
  must(simulated_cuda().cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
}

current_device::~current_device() {
  cu::context_t ignored = nullptr;
  simulated_cuda().cuCtxPopCurrent_v2(&ignored);
  simulated_cuda().cuDevicePrimaryCtxRelease_v2(ordinal_);
}

device_buffer::device_buffer(std::size_t bytes) : bytes_(bytes) {
  must(simulated_cuda().cuMemAlloc_v2(&pointer_, bytes), "cuMemAlloc");
}
device_buffer::~device_buffer() { free_now(); }
void device_buffer::free_now() {
  if (pointer_ != 0) simulated_cuda().cuMemFree_v2(pointer_);
  pointer_ = 0;
}

vmm_buffer::vmm_buffer(std::vector<std::size_t> piece_bytes, int handle_types) {
  const auto& cuda = simulated_cuda();
  for (const std::size_t bytes : piece_bytes) bytes_ += bytes;
  reserved_ = bytes_ + (2 << 20);  // a hole behind the last piece
  must(cuda.cuMemAddressReserve(&pointer_, reserved_, 0, 0, 0), "cuMemAddressReserve");
  cu::allocation_prop prop{};
  prop.type = cu::allocation_type::pinned;
  prop.location = {cu::location_type::device, 0};
  prop.requested_handle_types = handle_types;
  prop.flags.gpu_direct_rdma_capable = 1;
  std::uint64_t address = pointer_;
  for (const std::size_t bytes : piece_bytes) {
    cu::physical_t piece = 0;
    must(cuda.cuMemCreate(&piece, bytes, &prop, 0), "cuMemCreate");
    must(cuda.cuMemMap(address, bytes, 0, piece, 0), "cuMemMap");
    pieces_.push_back(piece);
    address += bytes;
  }
  const cu::access_desc access{{cu::location_type::device, 0}, cu::access_flags::read_write};
  must(cuda.cuMemSetAccess(pointer_, bytes_, &access, 1), "cuMemSetAccess");
}

vmm_buffer::~vmm_buffer() {
  const auto& cuda = simulated_cuda();
  cuda.cuMemUnmap(pointer_, bytes_);
  for (const auto piece : pieces_) cuda.cuMemRelease(piece);
  cuda.cuMemAddressFree(pointer_, reserved_);
}

std::vector<unsigned char> random_bytes(std::size_t count, std::uint64_t seed) {
  std::vector<unsigned char> out(count);
  std::uint64_t state = seed * 2 + 1;
  for (auto& byte : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<unsigned char>(state >> 56);
  }
  return out;
}

std::vector<unsigned char> device_bytes(std::uint64_t pointer, std::size_t count) {
  std::vector<unsigned char> out(count);
  must(simulated_cuda().cuMemcpyDtoH_v2(out.data(), pointer, count), "cuMemcpyDtoH");
  return out;
}

void set_device_bytes(std::uint64_t pointer, const std::vector<unsigned char>& bytes) {
  must(simulated_cuda().cuMemcpyHtoD_v2(pointer, bytes.data(), bytes.size()), "cuMemcpyHtoD");
}

int mapping_count(const char* needle) {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  char line[512];
  int count = 0;
  while (std::fgets(line, sizeof line, maps) != nullptr) count += std::strstr(line, needle) != nullptr ? 1 : 0;
  std::fclose(maps);
  return count;
}

}  // namespace pl::test
