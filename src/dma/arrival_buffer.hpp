// SPDX-License-Identifier: Apache-2.0
// Reads of GPU memory into host memory that is not registered. The copy engine writes to Peerlane's pinned memory, and the
// CPU copies from there to the destination.
//
// Short reads do not wait for a completion word. The pinned memory is filled with a sentinel. The CPU copies each line when
// all words of the line have changed (arch/arrival.hpp). This works for any order of the engine's writes, so the read needs
// no settling or flush (0.5 us less than a settled read, 1 us less than a flushed one). Data that equals the sentinel is
// detected by a flush after a pause. The sentinel is random, so this practically never happens.
//
// Two halves of the memory are used alternately. While the engine writes to one, the lines of the previous read leave the
// CPU's caches: the engine writes more slowly to lines that a cache holds modified.
//
// Longer reads are divided into parts in a ring. The CPU copies a part while the engine writes the next ones. Each read
// continues in the ring where the previous one ended, for the same reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "dma/channel.hpp"
#include "os/unforked_pages.hpp"

namespace pl::dma {

class arrival_buffer {
 public:
  // ENOMEM, EFAULT: its pages cannot be allocated or pinned.
  static result<std::unique_ptr<arrival_buffer>> open(std::shared_ptr<address_space> space);
  arrival_buffer(const arrival_buffer&) = delete;
  arrival_buffer& operator=(const arrival_buffer&) = delete;

  // Copies [source, source + size_bytes) of the channel's address space to `destination`; complete on return. It is not
  // ordered with other operations in progress. One thread at a time for each buffer. EIO, ETIMEDOUT: as channel::wait; the
  // channel is then stopped, and part of `destination` may have been written. ENOMEM, EFAULT: no memory for the ring of long
  // reads; nothing has begun.
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
  unforked_pages memory_;  // the two halves, for short reads
  region bound_;
  std::size_t half_ = 0, touched_bytes_ = 0;  // the half for the next read, and the bytes used in the other one
  unforked_pages ring_;                       // of parts; allocated by the first long read
  region bound_ring_;
  std::size_t next_part_ = 0;  // the next part of the ring to use
  std::uint64_t sentinel_ = 0;
};

}  // namespace pl::dma
