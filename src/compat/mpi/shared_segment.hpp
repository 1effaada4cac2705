// SPDX-License-Identifier: Apache-2.0
// A mapping of memory that two processes share, pinned for the GPU as soon as one copies there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "copy/gpu_context.hpp"
#include "os/unique_fd.hpp"

namespace pl::mpi {

// Move-only. Not given to forked children.
class shared_segment {
 public:
  shared_segment() = default;
  // `fd` is that of sealed_memory of at least `bytes`.
  static result<shared_segment> map(int fd, std::size_t bytes);
  // The same for a descriptor that another process sent. EPROTO: its size could still change, or is less than `bytes`.
  static result<shared_segment> map_received(int fd, std::size_t bytes);
  shared_segment(shared_segment&& other) noexcept;
  shared_segment& operator=(shared_segment&& other) noexcept;
  ~shared_segment() { drop(); }

  std::byte* data() const noexcept { return data_; }
  std::size_t size_bytes() const noexcept { return bytes_; }
  // Once; memory that cannot be pinned stays pageable, which copies accept. The caller lets one thread at a time do it.
  void pin(const copy::gpu_context& context) noexcept;
  bool was_pinned() const noexcept { return is_tried_; }

 private:
  void drop() noexcept;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  copy::gpu_context context_;
  bool is_tried_ = false, is_pinned_ = false;
};

}  // namespace pl::mpi
