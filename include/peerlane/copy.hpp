// SPDX-License-Identifier: Apache-2.0
// C++ API of the copies: RAII over the C calls of <peerlane/copy.h>, where each call is described; link libpeerlane.
//
//   auto copier = peerlane::copier::open();
//   copier->to_host(&result, device_ptr, sizeof result);   // 64 bytes: 1.15 us on an H100, no CUDA copy
//   auto later = copier->begin({{dst, src, bytes, 1, 0, 0, PEERLANE_TO_HOST, 0}});
//   later->wait();
#pragma once

#include <peerlane/copy.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <peerlane/peerlane.hpp>
#include <span>
#include <string>
#include <utility>

namespace peerlane {

namespace detail {
// Owner of a C handle that `End` ends.
template <class Handle, int (*End)(Handle)>
class owned_handle {
 public:
  owned_handle() = default;
  explicit owned_handle(Handle handle) noexcept : handle_(handle) {}
  owned_handle(owned_handle&& other) noexcept : handle_(other.release()) {}
  owned_handle& operator=(owned_handle&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = other.release();
    }
    return *this;
  }
  ~owned_handle() { reset(); }
  Handle get() const noexcept { return handle_; }
  Handle release() noexcept { return std::exchange(handle_, nullptr); }
  void reset() noexcept {
    if (handle_ != nullptr) End(release());
  }

 protected:
  Handle handle_ = nullptr;
};
}  // namespace detail

// The end of an asynchronous copy. An empty one is done. Dropping it waits.
class completion : public detail::owned_handle<peerlane_completion_t, peerlane_completion_free> {
 public:
  using owned_handle::owned_handle;
  result<bool> test() const {
    if (handle_ == nullptr) return true;
    int done = 0;
    if (const int code = peerlane_completion_test(handle_, &done)) return failure{code, peerlane_last_error()};
    return done != 0;
  }
  status wait() const { return handle_ == nullptr ? status{} : detail::to_status(peerlane_completion_wait(handle_)); }
  // `stream` is a CUstream (cudaStream_t), `event` a CUevent (cudaEvent_t).
  status make_wait(void* stream) const {
    return handle_ == nullptr ? status{} : detail::to_status(peerlane_completion_make_wait(handle_, stream));
  }
  status record(void* event) const {
    return handle_ == nullptr ? status{} : detail::to_status(peerlane_completion_record(handle_, event));
  }
};

// The resident kernel stays hot while one of these lives.
using hot_engine = detail::owned_handle<peerlane_hold_t, peerlane_copier_let_go>;
// Memory whose copies save the look at what lies there.
using registration = detail::owned_handle<peerlane_registration_t, peerlane_copier_unregister>;

// Must outlive its completions, holds and registrations. Any thread.
class copier : public detail::owned_handle<peerlane_copier_t, peerlane_copier_close> {
 public:
  using owned_handle::owned_handle;
  static result<copier> open(const peerlane_copier_options* options = nullptr) {
    peerlane_copier_t out = nullptr;
    if (const int code = peerlane_copier_open(options, &out)) return failure{code, peerlane_last_error()};
    return copier(out);
  }

  status to_device(std::uint64_t dst, const void* src, std::size_t bytes) const {
    return detail::to_status(peerlane_copy_to_device(handle_, dst, src, bytes));
  }
  status to_host(void* dst, std::uint64_t src, std::size_t bytes) const {
    return detail::to_status(peerlane_copy_to_host(handle_, dst, src, bytes));
  }
  status on_device(std::uint64_t dst, std::uint64_t src, std::size_t bytes) const {
    return detail::to_status(peerlane_copy_on_device(handle_, dst, src, bytes));
  }
  status copy(const peerlane_transfer& transfer) const { return detail::to_status(peerlane_copy_2d(handle_, &transfer)); }
  status copy_list(std::span<const peerlane_transfer> list) const {
    return detail::to_status(peerlane_copy_list(handle_, list.data(), list.size()));
  }
  status fill(std::uint64_t dst, std::byte value, std::size_t bytes) const {
    return detail::to_status(peerlane_copy_fill(handle_, dst, std::to_integer<int>(value), bytes));
  }

  result<completion> begin(std::span<const peerlane_transfer> list) const {
    return begin_with(list, PEERLANE_BEGIN_DEFAULT, nullptr);
  }
  result<completion> begin(std::initializer_list<peerlane_transfer> list) const {
    return begin_with({list.begin(), list.size()}, PEERLANE_BEGIN_DEFAULT, nullptr);
  }
  // After what `stream` (a CUstream) has queued so far.
  result<completion> begin_after(void* stream, std::span<const peerlane_transfer> list) const {
    return begin_with(list, PEERLANE_BEGIN_AFTER_STREAM, stream);
  }

  status prepare(int device_ordinal) const { return detail::to_status(peerlane_copier_prepare(handle_, device_ordinal)); }
  result<hot_engine> keep_hot(int device_ordinal) const {
    peerlane_hold_t out = nullptr;
    if (const int code = peerlane_copier_keep_hot(handle_, device_ordinal, &out))
      return failure{code, peerlane_last_error()};
    return hot_engine(out);
  }
  result<registration> register_memory(std::uint64_t device_ptr, std::size_t bytes) const {
    peerlane_registration_t out = nullptr;
    if (const int code = peerlane_copier_register(handle_, device_ptr, bytes, &out))
      return failure{code, peerlane_last_error()};
    return registration(out);
  }
  result<registration> register_host_memory(void* pointer, std::size_t bytes, int device_ordinal = 0) const {
    peerlane_registration_t out = nullptr;
    if (const int code = peerlane_copier_register_host(handle_, pointer, bytes, device_ordinal, &out))
      return failure{code, peerlane_last_error()};
    return registration(out);
  }
  status trim() const { return detail::to_status(peerlane_copier_trim(handle_)); }
  result<std::string> explain(peerlane_direction direction, bool pageable, std::size_t bytes) const {
    std::string text(8192, '\0');
    std::size_t needed = 0;
    if (const int code =
            peerlane_copier_explain(handle_, direction, pageable ? 1 : 0, bytes, text.data(), text.size(), &needed))
      return failure{code, peerlane_last_error()};
    text.resize(needed < text.size() ? needed : text.size() - 1);
    return text;
  }

 private:
  result<completion> begin_with(std::span<const peerlane_transfer> list, std::uint32_t flags, void* stream) const {
    peerlane_completion_t out = nullptr;
    if (const int code = peerlane_copy_begin(handle_, list.data(), list.size(), flags, stream, &out))
      return failure{code, peerlane_last_error()};
    return completion(out);
  }
};

}  // namespace peerlane
