// SPDX-License-Identifier: Apache-2.0
// Which value leaves a cache first: one interface, two policies. test/store/engine/eviction_trace.cpp compares them.
//
//   lru       evicts the value that was not used for the longest time
//   s3_fifo   three queues (Yang et al., SOSP 2023). New values enter a small queue (a tenth of the bytes) and reach the
//             main queue only if they were used twice there. The hash of a key that leaves the small queue is remembered,
//             and goes to the main queue at once when it returns. A scan passes the small queue and leaves the main one
//             alone.
//
// Not thread-safe except for cached_value::uses: the caller holds a lock (pool_cache).
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

// A value as a policy sees it. Its owner must not move it while it is in a queue.
struct cached_value {
  // The owner keeps the bytes of the key.
  std::string_view key() const noexcept { return {key_, key_bytes_}; }
  void set_key(std::string_view next) noexcept {
    key_ = next.data();
    key_bytes_ = static_cast<std::uint32_t>(next.size());
  }
  std::uint64_t bytes = 0;         // size that counts against the share
  cached_value* before = nullptr;  // neighbour towards the end that leaves last
  cached_value* behind = nullptr;

 private:
  const char* key_ = nullptr;
  std::uint32_t key_bytes_ = 0;

 public:
  std::atomic<std::uint8_t> uses{0};  // since it was inserted or last spared; at most kMaxUses
  enum class place : std::uint8_t { none, first, second } queue = place::none;

  static constexpr std::uint8_t kMaxUses = 3;
  // May be called from any thread, without the lock.
  void note_use() noexcept {
    const auto now = uses.load(std::memory_order_relaxed);
    if (now < kMaxUses) uses.store(static_cast<std::uint8_t>(now + 1), std::memory_order_relaxed);
  }
};

// An intrusive list of values.
class cached_queue {
 public:
  void push(cached_value& one) noexcept;  // adds it at the end that leaves last
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

  // Precondition: the value is in no queue.
  virtual void insert(cached_value& one) = 0;
  // The value was read and note_use() was called. Needed only if needs_uses(); other policies look at `uses` when they
  // choose.
  virtual void used(cached_value&) {}
  virtual bool needs_uses() const noexcept { return false; }
  // Removes the value. Does nothing if it is in no queue.
  virtual void remove(cached_value& one) = 0;
  // Takes the next victim out of its queue. Returns null if there is none.
  virtual cached_value* take_victim() = 0;
  // Takes back a victim that could not leave.
  virtual void put_back(cached_value& one) = 0;
  virtual std::uint64_t bytes() const noexcept = 0;
  virtual std::size_t count() const noexcept = 0;
};

}  // namespace pl::store
