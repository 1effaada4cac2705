// SPDX-License-Identifier: Apache-2.0
// Copies to host memory that need no registration and wait for no completion word: the engine writes into pinned memory that
// holds a sentinel, and the CPU copies each line on as soon as all its words have changed (arch/arrival.hpp).
//
//   engine   [part 0][part 1][part 2][part 3]     64 KiB each, as a ring that stays in the CPU's caches
//   CPU          \___ line by line, into the caller's memory; the sentinel goes back into what was taken
//
// So the CPU's copying overlaps with the transfer from the first line on, and the flush that a completion word needs (about
// 1.2 us) is saved: a line is complete whatever order the engine's writes arrive in. Data that equals the sentinel is found
// by a flush behind it, after a pause; the sentinel is random, so that happens to nobody by chance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "dma/channel.hpp"

namespace pl::dma {

class arrival_buffer {
 public:
  static constexpr std::size_t kPartBytes = 64u << 10;
  static constexpr unsigned kParts = 4;

  // ENOMEM, EFAULT: its pages cannot be had or pinned.
  static result<std::unique_ptr<arrival_buffer>> open(std::shared_ptr<address_space> space);
  ~arrival_buffer();
  arrival_buffer(const arrival_buffer&) = delete;
  arrival_buffer& operator=(const arrival_buffer&) = delete;

  // Copies [source, source + size_bytes) of the channel's address space to `destination`; all is there on return. Its bytes
  // are read when the engine comes to them, independently of operations under way. One thread at a time for each buffer.
  // EIO, ETIMEDOUT: as channel::wait; the channel has been stopped then, and part of `destination` may be written.
  status read(channel& queue, std::uint64_t source, void* destination, std::size_t size_bytes, std::uint64_t timeout_ns);

  std::uint64_t sentinel_for_tests() const noexcept { return sentinel_; }

 private:
  arrival_buffer() = default;
  struct reading;

  std::shared_ptr<address_space> space_;
  void* pages_ = nullptr;
  std::byte* memory_ = nullptr;  // kParts * kPartBytes
  region bound_;
  std::uint64_t sentinel_ = 0;
};

}  // namespace pl::dma
