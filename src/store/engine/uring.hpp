// SPDX-License-Identifier: Apache-2.0
// An io_uring that transfers a list of blocks and waits for all of them.
#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "store/engine/disk.hpp"

namespace pl::store {

// Huge pages from which long blocks are written.
class stage {
 public:
  static constexpr std::uint64_t kPartBytes = std::uint64_t{1} << 20;
  // Several parts keep the disk busy while the thread that fills them waits for a CPU: on two CPUs with a load of 7, 48
  // parts wrote a value at 3.8 and 4.0 GB/s where 8 did at 2.4 and 2.7. On an idle machine the number makes no
  // difference.
  static constexpr unsigned kParts = 32;
  // Returns null if there is no memory. Pages are allocated when parts are first used.
  static std::unique_ptr<stage> make();
  ~stage();
  stage(const stage&) = delete;
  stage& operator=(const stage&) = delete;
  std::byte* part(std::size_t number) noexcept { return base_ + number * kPartBytes; }

 private:
  explicit stage(std::byte* base) : base_(base) {}
  std::byte* const base_;
};

class uring {
 public:
  // Returns null if the kernel or its policy does not allow io_uring.
  static std::unique_ptr<uring> make();
  ~uring();
  uring(const uring&) = delete;
  uring& operator=(const uring&) = delete;

  // Not thread-safe. After a failure nothing is in flight. `through`: long blocks are copied there first (disk.hpp);
  // null: they are written from where they lie. `gate`: which blocks may be written yet; null: all.
  status write(std::span<const block_io> blocks, stage* through, block_gate* gate);
  status read(std::span<const block_io> blocks);

 private:
  struct part {
    const block_io* block = nullptr;
    std::byte* data = nullptr;  // address of byte `begun`: in the block or in the stage
    std::uint64_t begun = 0;    // from the block's start, as are these:
    std::uint64_t done = 0;
    std::uint64_t end = 0;
  };

  uring() = default;
  status run(std::span<const block_io> blocks, bool write, block_gate* gate);
  void begin(part& chunk);
  void submit(part& chunk, bool write);
  // Takes one completion and resubmits the rest of a short transfer. `briefly`: gives up if none comes soon.
  status reap(bool write, unsigned& in_flight, bool briefly);

  static constexpr unsigned kDepth = 64;
  unsigned max_in_flight_ = kDepth;  // under way in this run
  stage* through_ = nullptr;         // in this run
  io_uring ring_{};
  part parts_[kDepth];
  unsigned free_[kDepth];  // stack of parts not under way
  unsigned free_count_ = 0;
};

}  // namespace pl::store
