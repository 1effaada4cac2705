// SPDX-License-Identifier: Apache-2.0
// One io_uring that moves a list of blocks and waits for all of them.
#pragma once

#include <liburing.h>

#include <memory>
#include <span>

#include "disk.hpp"

namespace pl::store {

class uring {
 public:
  // Null where the kernel or its policy has none.
  static std::unique_ptr<uring> make();
  ~uring();
  uring(const uring&) = delete;
  uring& operator=(const uring&) = delete;

  // Not thread-safe. After a failure nothing is under way any more.
  status run(std::span<const block_io> blocks, bool write);

 private:
  struct part {
    const block_io* block = nullptr;
    std::uint64_t done = 0;   // from the block's start
    std::uint64_t until = 0;  // of this part
  };

  uring() = default;
  void submit(part& which, bool write);
  // Takes one completion; what is left of a short one is submitted again.
  status reap(bool write, unsigned& under_way);

  static constexpr unsigned kDepth = 64;
  io_uring ring_{};
  part parts_[kDepth];
  unsigned free_[kDepth];  // stack of parts not under way
  unsigned free_count_ = kDepth;
};

}  // namespace pl::store
