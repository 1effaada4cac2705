// SPDX-License-Identifier: Apache-2.0
// Pinned host memory that is reused: pinning costs 0.1 ms and more, a message 1 us.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "base/status.hpp"
#include "copy/gpu_context.hpp"
#include "copy/pinned_buffer.hpp"

namespace pl::mpi {

class staging_pool {
 public:
  // Move-only; gives itself back.
  class block {
   public:
    block() = default;
    block(block&& other) noexcept;
    block& operator=(block&& other) noexcept;
    ~block() { give_back(); }
    std::byte* data() const noexcept { return data_; }

   private:
    friend class staging_pool;
    void give_back() noexcept;
    staging_pool* owner_ = nullptr;
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    bool is_shared_ = false;      // a part of a slab
    copy::pinned_buffer memory_;  // not shared
    bool is_pageable_ = false;    // not shared, and could not or should not be pinned
  };

  // `idle_limit`: bytes of large blocks that are kept while nobody uses them.
  explicit staging_pool(std::size_t idle_limit) : idle_limit_(idle_limit) {}
  // Every block must have come back.
  ~staging_pool() = default;

  // `context` is asked for only when memory must be pinned: a result<gpu_context>(). Memory that cannot be pinned (limits of
  // locked memory, a context that is gone) is pageable, which copies accept. ENOMEM.
  template <class Context>
  result<block> take(std::size_t bytes, Context&& context) {
    if (auto found = take_idle(bytes)) return std::move(*found);
    return make(bytes, context());
  }
  // Committed only where it is touched, and given back to the system afterwards.
  result<block> take_sparse(std::size_t bytes);

 private:
  static constexpr std::size_t kSmallest = 256, kLargestShared = 64 * 1024, kSlab = 1u << 20;
  static constexpr unsigned kClasses = 9;  // 256 B, 512 B, ... 64 KiB
  static std::size_t rounded(std::size_t bytes) noexcept;
  static unsigned class_of(std::size_t rounded_bytes) noexcept;
  std::optional<block> take_idle(std::size_t bytes);
  result<block> make(std::size_t bytes, const result<copy::gpu_context>& context);
  result<block> make_large(std::size_t bytes, const result<copy::gpu_context>& context);
  void take_back(block& ended) noexcept;

  const std::size_t idle_limit_;
  std::mutex mutex_;
  std::vector<std::byte*> small_[kClasses];
  std::vector<block> slabs_;
  std::map<std::size_t, std::vector<block>> large_;  // by size
  std::size_t idle_bytes_ = 0;                       // of large_
};

}  // namespace pl::mpi
