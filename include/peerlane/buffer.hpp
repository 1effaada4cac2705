// SPDX-License-Identifier: Apache-2.0
// C++ buffers: views of host or GPU memory, which all calls accept. See <peerlane/buffer.h>.
//
//   std::vector<float> values(1024);
//   copier.copy(peerlane::device_buffer(device_ptr, 4096), values);      // spans and containers convert implicitly
//   comm.send(peer, peerlane::device_buffer(device_ptr, 4096), tag);
//
// A buffer owns nothing: the memory must stay valid until the call, or the operation that the call began, has ended. Buffers
// are plain values, like std::span.
#pragma once

#include <peerlane/buffer.h>

#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <type_traits>

namespace peerlane {

using device_ptr_t = peerlane_device_ptr_t;

namespace detail {
template <class Range>
concept plain_range = std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range> &&
    std::is_trivially_copyable_v<std::ranges::range_value_t<Range>> &&
    (std::is_lvalue_reference_v<Range> || std::ranges::borrowed_range<Range>);  // it outlives the view
template <class Range>
concept writable_range =
    plain_range<Range> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<Range>>>;

template <class Range>
peerlane_buffer host_buffer_over(Range& range) noexcept {
  return peerlane_host_buffer(std::ranges::data(range),
                              std::ranges::size(range) * sizeof(std::ranges::range_value_t<Range>));
}
}  // namespace detail

// Memory that a call reads.
class const_buffer {
 public:
  const_buffer() noexcept : value_(peerlane_host_buffer(nullptr, 0)) {}
  const_buffer(const peerlane_buffer& value) noexcept : value_(value) {}  // NOLINT(google-explicit-constructor)
  // Host memory: spans, vectors, arrays, strings of plain values.
  template <class Range>
  requires(!std::is_base_of_v<const_buffer, std::remove_cvref_t<Range>> && detail::plain_range<Range>)
      const_buffer(Range&& range)
  noexcept : value_(detail::host_buffer_over(range)) {}  // NOLINT(google-explicit-constructor)

  operator const peerlane_buffer&() const noexcept { return value_; }  // NOLINT(google-explicit-constructor)
  const peerlane_buffer& get() const noexcept { return value_; }
  std::uint64_t address() const noexcept { return value_.address; }
  const void* data() const noexcept { return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(value_.address)); }
  std::size_t size_bytes() const noexcept { return value_.size_bytes; }
  peerlane_memory kind() const noexcept { return static_cast<peerlane_memory>(value_.memory); }
  // The range [offset_bytes, offset_bytes + size_bytes), truncated at the buffer's end.
  const_buffer part(std::size_t offset_bytes, std::size_t size_bytes = SIZE_MAX) const noexcept {
    peerlane_buffer out = value_;
    const std::size_t skipped = offset_bytes < out.size_bytes ? offset_bytes : out.size_bytes;
    out.address += skipped;
    out.size_bytes -= skipped;
    if (size_bytes < out.size_bytes) out.size_bytes = size_bytes;
    return out;
  }

 protected:
  peerlane_buffer value_;
};

// Memory that a call may write.
class buffer : public const_buffer {
 public:
  buffer() noexcept = default;
  buffer(const peerlane_buffer& value) noexcept : const_buffer(value) {}  // NOLINT(google-explicit-constructor)
  template <class Range>
  requires(!std::is_base_of_v<const_buffer, std::remove_cvref_t<Range>> && detail::writable_range<Range>)
      buffer(Range&& range)
  noexcept : const_buffer(range) {}  // NOLINT(google-explicit-constructor)

  void* data() const noexcept { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(value_.address)); }
  buffer part(std::size_t offset_bytes, std::size_t size_bytes = SIZE_MAX) const noexcept {
    return buffer(const_buffer::part(offset_bytes, size_bytes).get());
  }
};

inline buffer host_buffer(void* pointer, std::size_t size_bytes) noexcept {
  return peerlane_host_buffer(pointer, size_bytes);
}
inline const_buffer host_buffer(const void* pointer, std::size_t size_bytes) noexcept {
  return peerlane_host_buffer(pointer, size_bytes);
}
// GPU memory, given by its address as a number or a pointer, or by a span, which is never dereferenced.
inline buffer device_buffer(device_ptr_t device_ptr, std::size_t size_bytes) noexcept {
  return peerlane_device_buffer(device_ptr, size_bytes);
}
inline buffer device_buffer(void* device_ptr, std::size_t size_bytes) noexcept {
  return peerlane_device_buffer(reinterpret_cast<std::uintptr_t>(device_ptr), size_bytes);
}
inline const_buffer device_buffer(const void* device_ptr, std::size_t size_bytes) noexcept {
  return peerlane_device_buffer(reinterpret_cast<std::uintptr_t>(device_ptr), size_bytes);
}
template <class T, std::size_t N>
std::conditional_t<std::is_const_v<T>, const_buffer, buffer> device_buffer(std::span<T, N> device) noexcept {
  return device_buffer(device.data(), device.size_bytes());
}
// Each call asks the driver for the kind of memory; detect_buffer() of <peerlane/peerlane.hpp> asks once.
inline buffer any_buffer(void* pointer, std::size_t size_bytes) noexcept { return peerlane_any_buffer(pointer, size_bytes); }
inline const_buffer any_buffer(const void* pointer, std::size_t size_bytes) noexcept {
  return peerlane_any_buffer(pointer, size_bytes);
}

}  // namespace peerlane
