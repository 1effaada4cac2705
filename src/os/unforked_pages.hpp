// SPDX-License-Identifier: Apache-2.0
// Anonymous memory for a device to access: zeroed pages that a forked child does not inherit, because copy-on-write would
// part the process from the device, which keeps the old page. In a child an access faults, so owners check the process epoch
// (fork_guard.hpp) first; destroying the object there does nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.hpp"

namespace pl {

class unforked_pages {
 public:
  enum class sharing { isolated, shared };  // MAP_PRIVATE, MAP_SHARED

  unforked_pages() = default;
  // `size_bytes` is rounded up to whole pages; from 2 MiB on the kernel is asked for huge pages. All pages are there when
  // the call returns. The errno of mmap, with the reason.
  static result<unforked_pages> make(std::size_t size_bytes, sharing kind = sharing::isolated);
  unforked_pages(unforked_pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(other.size_bytes_), epoch_(other.epoch_) {}
  unforked_pages& operator=(unforked_pages&& other) noexcept {
    if (this != &other) {
      drop();
      data_ = std::exchange(other.data_, nullptr);
      size_bytes_ = other.size_bytes_;
      epoch_ = other.epoch_;
    }
    return *this;
  }
  ~unforked_pages() { drop(); }

  explicit operator bool() const noexcept { return data_ != nullptr; }
  std::byte* data() const noexcept { return data_; }
  std::size_t size_bytes() const noexcept { return size_bytes_; }

 private:
  void drop() noexcept;
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  std::uint32_t epoch_ = 0;
};

}  // namespace pl
