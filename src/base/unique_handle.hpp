// SPDX-License-Identifier: Apache-2.0
// Owner of a handle-like value; moves are written once, here.
#pragma once

#include <utility>

namespace pl {

// Traits: `using type = ...; static constexpr type empty(); static void destroy(type) noexcept;`
template <class Traits>
class unique_handle {
 public:
  using type = typename Traits::type;

  unique_handle() noexcept = default;
  explicit unique_handle(type handle) noexcept : handle_(handle) {}
  unique_handle(unique_handle&& other) noexcept : handle_(other.release()) {}
  unique_handle& operator=(unique_handle&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  unique_handle(const unique_handle&) = delete;
  unique_handle& operator=(const unique_handle&) = delete;
  ~unique_handle() { reset(); }

  type get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != Traits::empty(); }
  type release() noexcept { return std::exchange(handle_, Traits::empty()); }
  void reset(type next = Traits::empty()) noexcept {
    const type old = std::exchange(handle_, next);
    if (old != Traits::empty()) Traits::destroy(old);
  }

 private:
  type handle_ = Traits::empty();
};

}  // namespace pl
