// SPDX-License-Identifier: Apache-2.0
// A reserved but inaccessible range of addresses, in which several pieces are mapped next to each other with MAP_FIXED.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "base/text.hpp"
#include "os/device_io.hpp"
#include "os/faulting_range.hpp"

namespace pl {

class reservation {
 public:
  static result<reservation> make(device_io& io, std::size_t size_bytes) {
    void* address = io.mmap(nullptr, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      const int code = errno;
      return failure{
          code, format("reserving %s of addresses failed: %s", format_size(size_bytes).c_str(), errno_text(code).c_str())};
    }
    return reservation(io, address, size_bytes);
  }
  reservation(reservation&& other) noexcept
      : io_(other.io_), address_(std::exchange(other.address_, nullptr)), size_bytes_(other.size_bytes_) {}
  reservation(const reservation&) = delete;
  reservation& operator=(const reservation&) = delete;
  reservation& operator=(reservation&&) = delete;
  // Unmaps the whole range, whatever was mapped into it.
  ~reservation() {
    if (address_ != nullptr) io_->munmap(address_, size_bytes_);
  }
  // Gives up the addresses for good: every access to them raises SIGBUS from now on.
  void leave_faulting() noexcept { leave_faulting_range(*io_, std::exchange(address_, nullptr), size_bytes_); }
  char* address() const noexcept { return static_cast<char*>(address_); }
  std::size_t size_bytes() const noexcept { return size_bytes_; }

 private:
  reservation(device_io& io, void* address, std::size_t size_bytes) : io_(&io), address_(address), size_bytes_(size_bytes) {}
  device_io* io_;
  void* address_;
  std::size_t size_bytes_;
};

}  // namespace pl
