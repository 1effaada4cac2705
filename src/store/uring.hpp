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

  // Not thread-safe. After a failure nothing is under way any more. `staged`: what is long is copied into huge pages first
  // (disk.hpp). `gate`: which blocks may be written yet; null: all.
  status write(std::span<const block_io> blocks, bool staged, block_gate* gate);
  status read(std::span<const block_io> blocks);

 private:
  struct part {
    const block_io* block = nullptr;
    std::byte* data = nullptr;  // of the byte `begun`: in the block or in the stage
    std::uint64_t begun = 0;    // from the block's start, and so are these:
    std::uint64_t done = 0;
    std::uint64_t until = 0;
  };

  uring() = default;
  status run(std::span<const block_io> blocks, bool write, block_gate* gate);
  bool make_stage();
  void begin(part& which);
  void submit(part& which, bool write);
  // Takes one completion; what is left of a short one is submitted again. `briefly`: or none, if none comes soon.
  status reap(bool write, unsigned& under_way, bool briefly);

  static constexpr unsigned kDepth = 64;
  static constexpr unsigned kStagedDepth = 8;  // of 1 MiB: more gains nothing, and they stay in a CPU's last cache
  unsigned most_ = kDepth;                     // under way in this run
  bool staged_ = false;                        // in this run
  std::byte* stage_ = nullptr;                 // kStagedDepth parts, from the first staged write on
  io_uring ring_{};
  part parts_[kDepth];
  unsigned free_[kDepth];  // stack of parts not under way
  unsigned free_count_ = 0;
};

}  // namespace pl::store
