// SPDX-License-Identifier: Apache-2.0
// A page of 32-bit words in host memory that CUDA streams and DMA channels wait for and write. Values of a word only
// grow (cyclically), also from one owner of the page to the next, so a stream that waits for an earlier value always
// continues.
//
// Pages belong to a CUDA context and are never returned to the system: a stream may read a word, and one that is late
// may still write it, long after the copies have ended. A page with a word that is still to be written goes to no other
// owner. Owned by one object at a time; not thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "copy/gpu_context.hpp"
#include "copy/pinned_buffer.hpp"

namespace pl::copy {

class stream_words {
 public:
  static constexpr std::size_t kPageBytes = 4096, kLineBytes = 64, kLines = kPageBytes / kLineBytes;

  // One word on a cache line of its own.
  struct line {
    std::uint32_t* word = nullptr;
    cu::device_ptr cuda_address = 0;
    std::size_t offset = 0;      // in the page
    std::uint32_t promised = 0;  // the last value that somebody was told to write

    std::uint32_t value() const noexcept { return std::atomic_ref(*word).load(std::memory_order_acquire); }
    bool has_reached(std::uint32_t wanted) const noexcept { return static_cast<std::int32_t>(value() - wanted) >= 0; }
    // Written by the CPU, in place of whoever should have.
    void release_all() const noexcept { std::atomic_ref(*word).store(promised, std::memory_order_release); }
  };

  // A page of the context, reused or new. ENOMEM, or CUDA's reason why it cannot be pinned.
  static result<std::unique_ptr<stream_words>> borrow(const gpu_context& context);
  ~stream_words();
  stream_words(const stream_words&) = delete;
  stream_words& operator=(const stream_words&) = delete;

  std::byte* data() const noexcept;
  // A line that this owner has not given out yet; null if all are. Lives as long as the object.
  line* take() noexcept;

 private:
  struct page;
  struct pool;
  explicit stream_words(std::unique_ptr<page> mine);
  std::unique_ptr<page> page_;
  std::size_t taken_ = 0;
};

}  // namespace pl::copy
