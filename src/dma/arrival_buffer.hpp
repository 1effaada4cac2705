// SPDX-License-Identifier: Apache-2.0
// Copies to host memory that needs no registration, through pinned memory of ours.
//
// Short ones wait for no completion word: the memory holds a sentinel, and the CPU copies each line on as soon as all its
// words have changed (arch/arrival.hpp). A line is complete whatever order the engine's writes arrive in, so nothing has to
// stand behind the copy (0.5 us less than a settled one, 1 us less than a flushed one). Data that equals the sentinel is
// found by a flush behind it, after a pause; the sentinel is random, so that happens to nobody by chance.
//
// Two halves take turns, so that the lines of the read before can leave the CPU's caches while the engine is at work: it
// writes to lines that a cache has changed more slowly.
//
// Longer ones go in parts, which the CPU copies on while the next ones come. Their ring goes on where the read before ended,
// for the same reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "dma/channel.hpp"

namespace pl::dma {

class arrival_buffer {
 public:
  // ENOMEM, EFAULT: its pages cannot be had or pinned.
  static result<std::unique_ptr<arrival_buffer>> open(std::shared_ptr<address_space> space);
  ~arrival_buffer();
  arrival_buffer(const arrival_buffer&) = delete;
  arrival_buffer& operator=(const arrival_buffer&) = delete;

  // Copies [source, source + size_bytes) of the channel's address space to `destination`; all is there on return. Its bytes
  // are read when the engine comes to them, independently of operations under way. One thread at a time for each buffer.
  // EIO, ETIMEDOUT: as channel::wait; the channel has been stopped then, and part of `destination` may be written. ENOMEM,
  // EFAULT: no memory for longer reads; nothing has begun.
  status read(channel& queue, std::uint64_t source, void* destination, std::size_t size_bytes, std::uint64_t timeout_ns);

  std::uint64_t sentinel_for_tests() const noexcept { return sentinel_; }

 private:
  arrival_buffer() = default;
  struct polled_read;
  status read_polled(channel& queue, std::uint64_t source, std::byte* destination, std::size_t size_bytes,
                     std::uint64_t end_ns);
  status read_by_parts(channel& queue, std::uint64_t source, std::byte* destination, std::size_t size_bytes,
                       std::uint64_t end_ns);

  status open_ring();

  std::shared_ptr<address_space> space_;
  std::byte* memory_ = nullptr;  // the halves that are polled
  region bound_;
  std::size_t half_ = 0, touched_bytes_ = 0;  // the half whose turn it is, and what was touched of the other one
  std::byte* ring_ = nullptr;                 // of parts, from the first long read on
  region bound_ring_;
  std::size_t next_part_ = 0;  // where the ring goes on
  std::uint64_t sentinel_ = 0;
};

}  // namespace pl::dma
