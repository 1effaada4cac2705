// SPDX-License-Identifier: Apache-2.0
// cuMemcpy in all its forms. Operands are checked and resolved when the call is made; the resolved pieces keep their
// memory alive until the copy has run.
//
// Pageable host memory follows the real rules: an asynchronous copy from it has read the source when the call returns,
// a copy to it has completed when the call returns. Only pinned, registered or managed memory is truly asynchronous, and
// only such copies are accepted into graphs here.
#include <cstring>

#include "sim/capture.hpp"
#include "sim/pace.hpp"
#include "sim/transfer.hpp"

namespace pl::sim {
namespace {

struct operands {
  std::vector<piece> destination;
  std::vector<piece> source;
};

bool is_pageable(device_ptr address) {
  auto& space = address_space::instance();
  return !space.is_device_address(address) && space.find(address) == nullptr;
}

result_t resolve_both(device_ptr dst, device_ptr src, std::size_t bytes, operands& out) {
  auto& space = address_space::instance();
  if (const auto rc = space.resolve(dst, bytes, out.destination); rc != code::success) return rc;
  return space.resolve(src, bytes, out.source);
}

// Replaces the source by a copy of it that the operation owns.
std::shared_ptr<std::vector<std::byte>> stage(operands& op, std::size_t bytes) {
  auto staged = std::make_shared<std::vector<std::byte>>(bytes);
  std::size_t offset = 0;
  for (const piece& p : op.source) {
    std::memcpy(staged->data() + offset, p.data, p.bytes);
    offset += p.bytes;
  }
  op.source = {{staged->data(), bytes, nullptr}};
  return staged;
}

enum class side { any, device };

bool is_allowed(device_ptr address, side wanted) {
  // HtoD and DtoH accept any unified address in practice, but a plain host pointer as the device side is refused.
  return wanted == side::any || !is_pageable(address);
}

result_t copy(device_ptr dst, side dst_side, device_ptr src, side src_side, std::size_t bytes) {
  const auto e = enter_unsafe();
  if (!e) return e.rc;
  if (bytes == 0) return code::success;
  if (!is_allowed(dst, dst_side) || !is_allowed(src, src_side)) return code::invalid_value;
  operands op;
  if (const auto rc = resolve_both(dst, src, bytes, op); rc != code::success) return rc;
  return run_synchronously(e.ctx, [op = std::move(op), dst, src, bytes, device = e.ctx->gpu->ordinal] {
    run_paced(dst, src, bytes, device, [&] { move_bytes(op.destination, op.source); });
  });
}

result_t copy_async(device_ptr dst, side dst_side, device_ptr src, side src_side, std::size_t bytes, stream_t handle) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (bytes == 0) return code::success;
  if (!is_allowed(dst, dst_side) || !is_allowed(src, src_side)) return code::invalid_value;
  operands op;
  if (const auto rc = resolve_both(dst, src, bytes, op); rc != code::success) return rc;
  const bool must_finish = is_pageable(dst);
  if (must_finish || is_pageable(src))
    if (const auto rc = refuse_while_capturing(s); rc != code::success) return rc;
  std::shared_ptr<std::vector<std::byte>> staged;
  if (is_pageable(src) && !must_finish) staged = stage(op, bytes);
  stream::ticket done = 0;
  auto work = [op = std::move(op), staged, dst, src, bytes, device = s.ctx->gpu->ordinal] {
    run_paced(dst, src, bytes, device, [&] { move_bytes(op.destination, op.source); });
  };
  const auto rc = enqueue(s, graph_node_type::memcpy, std::move(work), false, &done);
  if (rc != code::success || !must_finish) return rc;
  s.target_stream->wait(done);
  return s.ctx->fate->error.load();
}

device_ptr address_of(const void* pointer) { return reinterpret_cast<device_ptr>(pointer); }

struct copy_2d {  // CUDA_MEMCPY2D_v2
  std::size_t src_x, src_y;
  unsigned src_type;
  const void* src_host;
  device_ptr src_device;
  void* src_array;
  std::size_t src_pitch;
  std::size_t dst_x, dst_y;
  unsigned dst_type;
  void* dst_host;
  device_ptr dst_device;
  void* dst_array;
  std::size_t dst_pitch;
  std::size_t width, height;
};
static_assert(sizeof(copy_2d) == 128);

// Row 0's address, or 0 for arrays, which do not exist here.
device_ptr first_row(unsigned type, const void* host, device_ptr device_side, std::size_t x, std::size_t y,
                     std::size_t pitch) {
  device_ptr base = 0;
  if (type == memory_type::host) base = address_of(host);
  if (type == memory_type::device || type == memory_type::unified) base = device_side;
  return base == 0 ? 0 : base + y * pitch + x;
}

// All rows of both sides as one operand: the pieces of consecutive rows simply follow each other.
result_t resolve_2d(const copy_2d& c, operands& op) {
  const std::size_t src_pitch = c.src_pitch != 0 ? c.src_pitch : c.width;
  const std::size_t dst_pitch = c.dst_pitch != 0 ? c.dst_pitch : c.width;
  if (src_pitch < c.width + c.src_x || dst_pitch < c.width + c.dst_x) return code::invalid_value;
  const device_ptr src = first_row(c.src_type, c.src_host, c.src_device, c.src_x, c.src_y, src_pitch);
  const device_ptr dst = first_row(c.dst_type, c.dst_host, c.dst_device, c.dst_x, c.dst_y, dst_pitch);
  if (src == 0 || dst == 0) return code::invalid_value;
  for (std::size_t row = 0; row < c.height; ++row)
    if (const auto rc = resolve_both(dst + row * dst_pitch, src + row * src_pitch, c.width, op); rc != code::success)
      return rc;
  return code::success;
}

}  // namespace

PL_SIM_API cuMemcpyHtoD_v2(device_ptr dst, const void* src, std::size_t bytes) {
  return copy(dst, side::device, address_of(src), side::any, bytes);
}
PL_SIM_API cuMemcpyDtoH_v2(void* dst, device_ptr src, std::size_t bytes) {
  if (check_initialized() == code::success)
    if (const auto rc = injected_failure("cuMemcpyDtoH_v2"); rc != code::success) return rc;
  return copy(address_of(dst), side::any, src, side::device, bytes);
}
PL_SIM_API cuMemcpyDtoD_v2(device_ptr dst, device_ptr src, std::size_t bytes) {
  return copy(dst, side::device, src, side::device, bytes);
}
PL_SIM_API cuMemcpy(device_ptr dst, device_ptr src, std::size_t bytes) {
  return copy(dst, side::any, src, side::any, bytes);
}
PL_SIM_API cuMemcpyPeer(device_ptr dst, context_t dst_context, device_ptr src, context_t src_context, std::size_t bytes) {
  if (check_initialized() == code::success && (find_context(dst_context) == nullptr || find_context(src_context) == nullptr))
    return code::invalid_context;
  return copy(dst, side::device, src, side::device, bytes);
}

PL_SIM_API cuMemcpyHtoDAsync_v2(device_ptr dst, const void* src, std::size_t bytes, stream_t stream_handle) {
  return copy_async(dst, side::device, address_of(src), side::any, bytes, stream_handle);
}
PL_SIM_API cuMemcpyDtoHAsync_v2(void* dst, device_ptr src, std::size_t bytes, stream_t stream_handle) {
  return copy_async(address_of(dst), side::any, src, side::device, bytes, stream_handle);
}
PL_SIM_API cuMemcpyDtoDAsync_v2(device_ptr dst, device_ptr src, std::size_t bytes, stream_t stream_handle) {
  return copy_async(dst, side::device, src, side::device, bytes, stream_handle);
}
PL_SIM_API cuMemcpyAsync(device_ptr dst, device_ptr src, std::size_t bytes, stream_t stream_handle) {
  return copy_async(dst, side::any, src, side::any, bytes, stream_handle);
}
PL_SIM_API cuMemcpyPeerAsync(device_ptr dst, context_t dst_context, device_ptr src, context_t src_context, std::size_t bytes,
                             stream_t stream_handle) {
  if (check_initialized() == code::success && (find_context(dst_context) == nullptr || find_context(src_context) == nullptr))
    return code::invalid_context;
  return copy_async(dst, side::device, src, side::device, bytes, stream_handle);
}

// One operation of the stream whose copies have no order among themselves.
PL_SIM_API cuMemcpyBatchAsync_v2(device_ptr* dsts, device_ptr* srcs, std::size_t* sizes, std::size_t count,
                                 memcpy_attributes* attributes, std::size_t* first, std::size_t attribute_count,
                                 stream_t handle) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (s.target_stream == s.ctx->legacy || dsts == nullptr || srcs == nullptr || sizes == nullptr || count == 0)
    return code::invalid_value;
  if (attributes == nullptr || first == nullptr || attribute_count == 0 || attribute_count > count || first[0] != 0)
    return code::invalid_value;
  for (std::size_t i = 0; i < attribute_count; ++i)
    if (attributes[i].source_order < memcpy_source_order::stream || attributes[i].source_order > memcpy_source_order::any ||
        first[i] >= count || (i > 0 && first[i] <= first[i - 1]))
      return code::invalid_value;
  operands op;
  for (std::size_t i = 0; i < count; ++i) {
    if (is_pageable(dsts[i]) || is_pageable(srcs[i])) return code::not_supported;
    if (const auto rc = resolve_both(dsts[i], srcs[i], sizes[i], op); rc != code::success) return rc;
  }
  return enqueue(s, graph_node_type::memcpy, [op = std::move(op)] { move_bytes(op.destination, op.source); });
}

PL_SIM_API cuMemcpy2D_v2(const copy_2d* c) {
  const auto e = enter_unsafe();
  if (!e) return e.rc;
  if (c == nullptr) return code::invalid_value;
  if (c->width == 0 || c->height == 0) return code::success;
  operands op;
  if (const auto rc = resolve_2d(*c, op); rc != code::success) return rc;
  return run_synchronously(e.ctx, [op = std::move(op)] { move_bytes(op.destination, op.source); });
}

PL_SIM_API cuMemcpy2DAsync_v2(const copy_2d* c, stream_t handle) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (c == nullptr) return code::invalid_value;
  if (c->width == 0 || c->height == 0) return code::success;
  operands op;
  if (const auto rc = resolve_2d(*c, op); rc != code::success) return rc;
  const bool has_pageable = (c->src_type == memory_type::host && is_pageable(address_of(c->src_host))) ||
                            (c->dst_type == memory_type::host && is_pageable(address_of(c->dst_host)));
  if (has_pageable)
    if (const auto rc = refuse_while_capturing(s); rc != code::success) return rc;
  stream::ticket done = 0;
  const auto rc = enqueue(
      s, graph_node_type::memcpy, [op = std::move(op)] { move_bytes(op.destination, op.source); }, false, &done);
  if (rc != code::success || !has_pageable) return rc;
  s.target_stream->wait(done);
  return s.ctx->fate->error.load();
}

// ---- memset ---------------------------------------------------------------------------------------------------------

namespace {

result_t resolve_set(device_ptr dst, std::size_t count, std::size_t element_bytes, std::vector<piece>& destination) {
  if (dst % element_bytes != 0 || count > SIZE_MAX / element_bytes || is_pageable(dst)) return code::invalid_value;
  return address_space::instance().resolve(dst, count * element_bytes, destination);
}

result_t set(device_ptr dst, std::uint32_t value, std::size_t element_bytes, std::size_t count) {
  const auto e = enter_unsafe();
  if (!e) return e.rc;
  if (count == 0) return code::success;
  std::vector<piece> destination;
  if (const auto rc = resolve_set(dst, count, element_bytes, destination); rc != code::success) return rc;
  return run_synchronously(e.ctx, [destination = std::move(destination), value, element_bytes] {
    fill_bytes(destination, value, element_bytes);
  });
}

result_t set_async(device_ptr dst, std::uint32_t value, std::size_t element_bytes, std::size_t count, stream_t handle) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (count == 0) return code::success;
  std::vector<piece> destination;
  if (const auto rc = resolve_set(dst, count, element_bytes, destination); rc != code::success) return rc;
  return enqueue(s, graph_node_type::memset, [destination = std::move(destination), value, element_bytes] {
    fill_bytes(destination, value, element_bytes);
  });
}

result_t resolve_set_2d(device_ptr dst, std::size_t pitch, std::size_t element_bytes, std::size_t width, std::size_t height,
                        std::vector<piece>& destination) {
  if (width > SIZE_MAX / element_bytes || pitch < width * element_bytes) return code::invalid_value;
  for (std::size_t row = 0; row < height; ++row)
    if (const auto rc = resolve_set(dst + row * pitch, width, element_bytes, destination); rc != code::success) return rc;
  return code::success;
}

result_t set_2d(device_ptr dst, std::size_t pitch, std::uint32_t value, std::size_t element_bytes, std::size_t width,
                std::size_t height) {
  const auto e = enter_unsafe();
  if (!e) return e.rc;
  if (width == 0 || height == 0) return code::success;
  std::vector<piece> destination;
  if (const auto rc = resolve_set_2d(dst, pitch, element_bytes, width, height, destination); rc != code::success) return rc;
  return run_synchronously(e.ctx, [destination = std::move(destination), value, element_bytes] {
    fill_bytes(destination, value, element_bytes);
  });
}

result_t set_2d_async(device_ptr dst, std::size_t pitch, std::uint32_t value, std::size_t element_bytes, std::size_t width,
                      std::size_t height, stream_t handle) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (width == 0 || height == 0) return code::success;
  std::vector<piece> destination;
  if (const auto rc = resolve_set_2d(dst, pitch, element_bytes, width, height, destination); rc != code::success) return rc;
  return enqueue(s, graph_node_type::memset, [destination = std::move(destination), value, element_bytes] {
    fill_bytes(destination, value, element_bytes);
  });
}

}  // namespace

PL_SIM_API cuMemsetD2D8Async(device_ptr dst, std::size_t pitch, unsigned char value, std::size_t width, std::size_t height,
                             stream_t stream_handle) {
  return set_2d_async(dst, pitch, value, 1, width, height, stream_handle);
}
PL_SIM_API cuMemsetD2D16Async(device_ptr dst, std::size_t pitch, unsigned short value, std::size_t width, std::size_t height,
                              stream_t stream_handle) {
  return set_2d_async(dst, pitch, value, 2, width, height, stream_handle);
}
PL_SIM_API cuMemsetD2D32Async(device_ptr dst, std::size_t pitch, unsigned value, std::size_t width, std::size_t height,
                              stream_t stream_handle) {
  return set_2d_async(dst, pitch, value, 4, width, height, stream_handle);
}
PL_SIM_API cuMemsetD8_v2(device_ptr dst, unsigned char value, std::size_t count) { return set(dst, value, 1, count); }
PL_SIM_API cuMemsetD16_v2(device_ptr dst, unsigned short value, std::size_t count) { return set(dst, value, 2, count); }
PL_SIM_API cuMemsetD32_v2(device_ptr dst, unsigned value, std::size_t count) { return set(dst, value, 4, count); }
PL_SIM_API cuMemsetD8Async(device_ptr dst, unsigned char value, std::size_t count, stream_t stream_handle) {
  return set_async(dst, value, 1, count, stream_handle);
}
PL_SIM_API cuMemsetD16Async(device_ptr dst, unsigned short value, std::size_t count, stream_t stream_handle) {
  return set_async(dst, value, 2, count, stream_handle);
}
PL_SIM_API cuMemsetD32Async(device_ptr dst, unsigned value, std::size_t count, stream_t stream_handle) {
  return set_async(dst, value, 4, count, stream_handle);
}
PL_SIM_API cuMemsetD2D8_v2(device_ptr dst, std::size_t pitch, unsigned char value, std::size_t width, std::size_t height) {
  return set_2d(dst, pitch, value, 1, width, height);
}
PL_SIM_API cuMemsetD2D16_v2(device_ptr dst, std::size_t pitch, unsigned short value, std::size_t width, std::size_t height) {
  return set_2d(dst, pitch, value, 2, width, height);
}
PL_SIM_API cuMemsetD2D32_v2(device_ptr dst, std::size_t pitch, unsigned value, std::size_t width, std::size_t height) {
  return set_2d(dst, pitch, value, 4, width, height);
}

}  // namespace pl::sim
