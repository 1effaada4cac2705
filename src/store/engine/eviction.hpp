// SPDX-License-Identifier: Apache-2.0
// Which value leaves a cache first: one interface, two policies. test/store/engine/eviction_trace.cpp compares them.
//
//   lru       the value that was not used for the longest time
//   s3_fifo   three queues (Yang et al., SOSP 2023): new values pass a small queue, a tenth of the bytes, and reach the main
//             one only if they were used twice there; what left the small queue is remembered by its key's hash, and goes to
//             the main queue at once when it comes again. A scan passes the small queue and leaves the main one alone.
//
// Not thread-safe, but for cached_value::uses: the caller holds a lock (pool_cache).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace pl::store {

enum class eviction : std::uint8_t { s3_fifo = 0, lru = 1, last = lru };
const char* name_of(eviction kind) noexcept;  // "s3-fifo", "lru"
std::optional<eviction> eviction_of(std::string_view name) noexcept;

// A value as a policy sees it. Its owner keeps it where it is while it stands in a queue.
struct cached_value {
  // Of the owner, who keeps it.
  std::string_view key() const noexcept { return {key_, key_bytes_}; }
  void set_key(std::string_view next) noexcept {
    key_ = next.data();
    key_bytes_ = static_cast<std::uint32_t>(next.size());
  }
  std::uint64_t bytes = 0;         // that it takes
  cached_value* before = nullptr;  // towards the end that leaves last
  cached_value* behind = nullptr;

 private:
  const char* key_ = nullptr;
  std::uint32_t key_bytes_ = 0;

 public:
  std::atomic<std::uint8_t> uses{0};  // since it came, or was last spared; at most kMaxUses
  enum class place : std::uint8_t { none, first, second } queue = place::none;

  static constexpr std::uint8_t kMaxUses = 3;
  // From any thread, without the lock.
  void note_use() noexcept {
    const auto now = uses.load(std::memory_order_relaxed);
    if (now < kMaxUses) uses.store(static_cast<std::uint8_t>(now + 1), std::memory_order_relaxed);
  }
};

// A list through the values themselves.
class cached_queue {
 public:
  void push(cached_value& one) noexcept;  // at the end that leaves last
  void remove(cached_value& one) noexcept;
  cached_value* next_to_leave() const noexcept { return tail_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  std::size_t count() const noexcept { return count_; }

 private:
  cached_value* head_ = nullptr;
  cached_value* tail_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::size_t count_ = 0;
};

class eviction_policy {
 public:
  static std::unique_ptr<eviction_policy> make(eviction kind);
  virtual ~eviction_policy() = default;

  // Precondition: it stands in no queue.
  virtual void insert(cached_value& one) = 0;
  // It was read, and note_use() was called. Only where needs_uses(): others look at `uses` when they choose.
  virtual void used(cached_value&) {}
  virtual bool needs_uses() const noexcept { return false; }
  // Its owner takes it away. Nothing if it stands in no queue.
  virtual void remove(cached_value& one) = 0;
  // The value to leave next, in no queue from now on; null: there is none.
  virtual cached_value* take_victim() = 0;
  // A victim that could not leave.
  virtual void put_back(cached_value& one) = 0;
  virtual std::uint64_t bytes() const noexcept = 0;
  virtual std::size_t count() const noexcept = 0;
};

}  // namespace pl::store
