// SPDX-License-Identifier: Apache-2.0
// Memory that two processes of one node share: an unnamed file that the other process opens through this process's /proc
// entry. Nothing is left behind when both are gone, however they ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.hpp"
#include "os/unique_fd.hpp"

namespace pl::triggered {

class shared_memory {
 public:
  // Enough to open it, for a process of the same node. Plain bytes.
  struct name {
    std::int32_t pid = 0;
    std::int32_t fd = -1;
    std::uint64_t inode = 0;
    std::uint64_t bytes = 0;
  };

  shared_memory() = default;
  // Zeroed, whole pages. Not given to forked children: touching it there is a fault, so owners check the process epoch
  // first.
  static result<shared_memory> make(const char* label, std::size_t bytes);
  // EPERM, ENOENT: the processes may not reach each other's files (containers, non-dumpable processes). ESTALE: another
  // file.
  static result<shared_memory> open(const name& source);
  shared_memory(shared_memory&& other) noexcept
      : fd_(std::move(other.fd_)), name_(other.name_), data_(std::exchange(other.data_, nullptr)) {}
  shared_memory& operator=(shared_memory&&) = delete;
  ~shared_memory();

  std::byte* data() const noexcept { return data_; }
  std::size_t size_bytes() const noexcept { return name_.bytes; }
  const name& own_name() const noexcept { return name_; }

 private:
  status map();
  unique_fd fd_;
  name name_;
  std::byte* data_ = nullptr;
};

}  // namespace pl::triggered
