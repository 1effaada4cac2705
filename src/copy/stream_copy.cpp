// SPDX-License-Identifier: Apache-2.0
#include "copy/stream_copy.hpp"

#include "base/text.hpp"

namespace pl::copy {
namespace {

constexpr std::size_t kMaxPitch = 0x7fffffff;  // CU_DEVICE_ATTRIBUTE_MAX_PITCH of every GPU so far

const char* direction_text(direction way) {
  if (way == direction::to_device) return "to the device";
  return way == direction::to_host ? "to the host" : "on the device";
}

cu::result_t queue_rows(const cu::driver_table& cuda, const transfer& copy, cu::stream_t stream) {
  auto rc = cu::result_t{cu::error_code::success};
  for (std::size_t row = 0; row < copy.rows && rc == cu::error_code::success; ++row)
    rc = cuda.cuMemcpyAsync(copy.dst + row * copy.dst_pitch, copy.src + row * copy.src_pitch, copy.row_bytes, stream);
  return rc;
}

}  // namespace

std::string describe(const transfer& copy) {
  return format("%zu x %zu bytes %s, 0x%llx to 0x%llx", copy.rows, copy.row_bytes, direction_text(copy.way),
                static_cast<unsigned long long>(copy.src), static_cast<unsigned long long>(copy.dst));
}

cu::result_t queue_copy(const cu::driver_table& cuda, const transfer& copy, cu::stream_t stream) {
  if (copy.bytes() == 0) return cu::error_code::success;
  if (copy.is_linear()) return cuda.cuMemcpyAsync(copy.dst, copy.src, copy.bytes(), stream);
  if (copy.dst_pitch > kMaxPitch || copy.src_pitch > kMaxPitch) return queue_rows(cuda, copy, stream);
  // The host's side by its own type: CUDA accepts pageable memory there, but not everywhere as a unified address.
  cu::memcpy_2d both{};
  both.src_type = copy.way == direction::to_device ? cu::memory_type::host : cu::memory_type::device;
  both.src_host = host_pointer(copy.src);
  both.src_device = copy.src;
  both.src_pitch = copy.src_pitch;
  both.dst_type = copy.way == direction::to_host ? cu::memory_type::host : cu::memory_type::device;
  both.dst_host = host_pointer(copy.dst);
  both.dst_device = copy.dst;
  both.dst_pitch = copy.dst_pitch;
  both.width_bytes = copy.row_bytes;
  both.height = copy.rows;
  return cuda.cuMemcpy2DAsync_v2(&both, stream);
}

}  // namespace pl::copy
