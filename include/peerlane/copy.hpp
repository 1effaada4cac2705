// SPDX-License-Identifier: Apache-2.0
// C++ interface of copies: RAII over the C calls of <peerlane/copy.h>, which describes each call. Link libpeerlane.
//
//   auto copier = peerlane::copier::open();                                       // result<copier>
//   copier->copy(peerlane::host_buffer(&result, sizeof result), device);         // device: a buffer, a span of host memory
//   ... auto later = copier->begin({{values, peerlane::device_buffer(device_ptr, size_bytes)}});   // result<operation>
//   later->wait();
#pragma once

#include <peerlane/copy.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <peerlane/buffer.hpp>
#include <peerlane/operation.hpp>
#include <peerlane/peerlane.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace peerlane {

namespace detail {
// Owns a C handle; `End` ends it.
template <class Handle, int (*End)(Handle)>
class owned_handle {
 public:
  owned_handle() = default;
  explicit owned_handle(Handle handle) noexcept : handle_(handle) {}
  owned_handle(owned_handle&& other) noexcept : handle_(other.give_up()) {}
  owned_handle& operator=(owned_handle&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = other.give_up();
    }
    return *this;
  }
  ~owned_handle() { reset(); }
  Handle get() const noexcept { return handle_; }
  // Gives up ownership: the caller must end the returned handle.
  Handle give_up() noexcept { return std::exchange(handle_, nullptr); }
  void reset() noexcept {
    if (handle_ != nullptr) End(give_up());
  }

 protected:
  Handle handle_ = nullptr;
};

// The full text from `give(text, capacity, needed)`; the text may grow from one call to the next.
template <class Give>
result<std::string> whole_text(Give&& give) {
  std::string text(4096, '\0');
  for (;;) {
    std::size_t needed = 0;
    if (const int code = give(text.data(), text.size(), &needed)) return failure{code, peerlane_last_error()};
    const bool is_whole = needed < text.size();
    text.resize(is_whole ? needed : needed + 1024);
    if (is_whole) return text;
  }
}
}  // namespace detail

// One copy of a list.
struct transfer : peerlane_transfer {
  transfer(buffer destination_buffer, const_buffer source_buffer) noexcept
      : peerlane_transfer(peerlane_plain_transfer(destination_buffer, source_buffer)) {}
  // `row_count` rows of `row_bytes` each; a pitch is the distance between the starts of two rows, in bytes.
  transfer(buffer destination_buffer, std::size_t destination_pitch, const_buffer source_buffer, std::size_t source_pitch,
           std::size_t row_bytes, std::size_t row_count) noexcept
      : transfer(destination_buffer, source_buffer) {
    rows = row_count;
    row_size_bytes = row_bytes;
    destination_pitch_bytes = destination_pitch;
    source_pitch_bytes = source_pitch;
  }
};
static_assert(sizeof(transfer) == sizeof(peerlane_transfer), "spans of them are passed to C");

// Keeps the resident kernel on the GPU while this object exists.
using hot_engine = detail::owned_handle<peerlane_hold_t, peerlane_hold_release>;
// Registered memory: its copies do not have to ask the driver about it.
using registration = detail::owned_handle<peerlane_registration_t, peerlane_registration_release>;

// `operation` comes from begin(); an empty one counts as ended. `stream` is a CUstream (cudaStream_t), `event` a CUevent
// (cudaEvent_t).
inline status make_wait(const operation& copies, void* stream) {
  return copies.is_empty() ? status{} : detail::to_status(peerlane_copy_make_wait(&copies.get(), stream));
}
inline status record(const operation& copies, void* event) {
  return copies.is_empty() ? status{} : detail::to_status(peerlane_copy_record(&copies.get(), event));
}
// File descriptor for poll, epoll and event loops: becomes readable when the copies may have ended; then call test(). The
// library owns it and closes it when they have ended.
inline result<int> descriptor(const operation& copies) {
  int made = -1;
  if (const int code = peerlane_copy_descriptor(&copies.get(), &made)) return failure{code, peerlane_last_error()};
  return made;
}

// Must outlive its operations, holds and registrations. Any thread.
class copier : public detail::owned_handle<peerlane_copier_t, peerlane_copier_close> {
 public:
  using owned_handle::owned_handle;

  // For options other than the defaults, start from copier::options().
  static result<copier> open(const peerlane_copier_options* options = nullptr) {
    peerlane_copier_t out = nullptr;
    if (const int code = peerlane_copier_open(options, &out)) return failure{code, peerlane_last_error()};
    return copier(out);
  }
  static peerlane_copier_options options() noexcept {
    peerlane_copier_options out{};
    out.struct_bytes = sizeof out;
    return out;
  }
  // EBUSY: operations, holds or registrations keep it open.
  status close() {
    const int code = peerlane_copier_close(handle_);
    if (code != EBUSY) handle_ = nullptr;
    return detail::to_status(code);
  }

  status copy(buffer destination, const_buffer source) const {
    return detail::to_status(peerlane_copy(handle_, destination, source));
  }
  status copy_rows(const transfer& rows) const { return detail::to_status(peerlane_copy_rows(handle_, &rows)); }
  status copy_list(std::span<const transfer> list) const {
    return detail::to_status(peerlane_copy_list(handle_, list.data(), list.size()));
  }
  status fill(buffer destination, std::byte value) const {
    return detail::to_status(peerlane_copy_fill(handle_, destination, std::to_integer<int>(value)));
  }

  result<operation> begin(std::span<const transfer> list) const { return begin_with(list, PEERLANE_BEGIN_DEFAULT, nullptr); }
  result<operation> begin(std::initializer_list<transfer> list) const {
    return begin_with({list.begin(), list.size()}, PEERLANE_BEGIN_DEFAULT, nullptr);
  }
  // The copies wait for the work that `stream` (a CUstream) holds at the call.
  result<operation> begin_after(void* stream, std::span<const transfer> list) const {
    return begin_with(list, PEERLANE_BEGIN_AFTER_STREAM, stream);
  }
  result<operation> begin_after(void* stream, std::initializer_list<transfer> list) const {
    return begin_with({list.begin(), list.size()}, PEERLANE_BEGIN_AFTER_STREAM, stream);
  }

  // Adds the copies as nodes to the graph that `stream` is being captured into: each launch makes them again.
  status capture(void* stream, std::span<const transfer> list) const {
    return detail::to_status(peerlane_copy_capture(handle_, list.data(), list.size(), stream));
  }
  status capture(void* stream, std::initializer_list<transfer> list) const {
    return capture(stream, std::span(list.begin(), list.size()));
  }

  status prepare(int device_ordinal) const { return detail::to_status(peerlane_copier_prepare(handle_, device_ordinal)); }
  result<hot_engine> keep_hot(int device_ordinal) const {
    peerlane_hold_t out = nullptr;
    if (const int code = peerlane_copier_keep_hot(handle_, device_ordinal, &out))
      return failure{code, peerlane_last_error()};
    return hot_engine(out);
  }
  result<registration> register_memory(const_buffer memory) const {
    peerlane_registration_t out = nullptr;
    if (const int code = peerlane_copier_register(handle_, memory, &out)) return failure{code, peerlane_last_error()};
    return registration(out);
  }
  status trim() const { return detail::to_status(peerlane_copier_trim(handle_)); }
  result<std::string> explain(peerlane_direction direction, bool pageable, std::size_t size_bytes) const {
    return detail::whole_text([&](char* text, std::size_t capacity, std::size_t* needed) {
      return peerlane_copier_explain(handle_, direction, pageable ? 1 : 0, size_bytes, text, capacity, needed);
    });
  }

 private:
  result<operation> begin_with(std::span<const transfer> list, std::uint32_t flags, void* stream) const {
    peerlane_op_t out{};
    if (const int code = peerlane_copy_begin(handle_, list.data(), list.size(), flags, stream, &out))
      return failure{code, peerlane_last_error()};
    return operation(out);
  }
};

}  // namespace peerlane
