// SPDX-License-Identifier: Apache-2.0
// A library that calls ioctl through its import table, as libcuda does: built once with lazy binding and once bound at
// load time with a read-only table (full RELRO). fake_export() announces two objects in the layout that `fake_layout` says.
#include <sys/ioctl.h>

#include "rm/rm_abi.hpp"

#define FAKE_API extern "C" __attribute__((visibility("default")))

// 0: 2608 bytes, 1: 2600, 2: behind the transfer escape, 3: nothing, 4: sizes that do not add up, 5: the call repeated, as
// after a signal, 6: 300 objects of 64 KiB in three calls, the second repeated
FAKE_API int fake_layout;
int fake_layout = 0;
FAKE_API int fake_depth;  // not 0: libcuda's frames are on the stack
int fake_depth = 0;

FAKE_API int fake_ioctl(int fd, unsigned long request, void* argument) { return ioctl(fd, request, argument); }

namespace {

template <class Params>
Params announcement(std::uint64_t bytes) {
  Params out{};
  out.fd = -1;
  out.client = 0xc1d00007;
  out.total_objects = out.object_count = 2;
  out.total_bytes = bytes;
  out.handles[0] = 0x5c000010, out.handles[1] = 0x5c000011;
  out.offsets[0] = 0x3000, out.offsets[1] = 0;
  out.sizes[0] = 0x1000, out.sizes[1] = bytes - 0x1000;
  return out;
}

void announce_many() {
  constexpr std::uint32_t kObjects = 300;
  for (std::uint32_t first = 0, repeats = 0; first < kObjects; first += 128) {
    pl::rm::export_dma_buf_params out{};
    out.client = 0xc1d00007;
    out.total_objects = kObjects;
    out.index = first;
    out.object_count = kObjects - first < 128 ? kObjects - first : 128;
    for (std::uint32_t i = 0; i < out.object_count; ++i) {
      out.handles[i] = 0x5c000010 + first + i;
      out.sizes[i] = 65536;
    }
    fake_ioctl(-1, pl::rm::ioctl_request(pl::rm::esc_export_dma_buf, sizeof out), &out);
    if (first == 128 && repeats++ == 0) first -= 128;
  }
}

}  // namespace

FAKE_API int fake_export(void* handle, unsigned long long, unsigned long bytes, int, unsigned long long) {
  using namespace pl::rm;
  ++fake_depth;
  if (fake_layout == 1) {
    auto old = announcement<export_dma_buf_params_2600>(bytes);
    fake_ioctl(-1, ioctl_request(esc_export_dma_buf, sizeof old), &old);
  } else if (fake_layout == 6) {
    announce_many();
  } else if (fake_layout != 3) {
    auto now = announcement<export_dma_buf_params>(fake_layout == 4 ? bytes / 2 : bytes);
    transfer_params escape{};
    escape.number = esc_export_dma_buf;
    escape.size_bytes = sizeof now;
    escape.pointer = reinterpret_cast<std::uint64_t>(&now);
    if (fake_layout == 2) fake_ioctl(-1, ioctl_request(esc_transfer, sizeof escape), &escape);
    else fake_ioctl(-1, ioctl_request(esc_export_dma_buf, sizeof now), &now);
    if (fake_layout == 5) fake_ioctl(-1, ioctl_request(esc_export_dma_buf, sizeof now), &now);
  }
  --fake_depth;
  *static_cast<int*>(handle) = -1;
  return fake_layout == 3 ? 1 : 0;
}
