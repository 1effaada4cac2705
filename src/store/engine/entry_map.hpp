// SPDX-License-Identifier: Apache-2.0
// A map from key to entry for many short keys. An entry is one heap block with its key behind it, chained in its
// bucket, so a key of 16 bytes takes 64 bytes and half a bucket; std::unordered_map<std::string, entry> takes 172.
// Entries never move. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "store/engine/value.hpp"

namespace pl::store {

class entry_map;

// What memory knows of a key (table.hpp says when there is an entry).
class entry {
 public:
  entry(const entry&) = delete;
  entry& operator=(const entry&) = delete;

  std::string_view key() const noexcept { return {key_, key_bytes_}; }
  // The cache's part of the entry if the pool is a cache. The cache then tracks the value instead of the shard's lists.
  cache_entry* cached() const noexcept { return is_cached_ ? cached_ : nullptr; }
  void set_cached(std::unique_ptr<cache_entry> next) noexcept;  // precondition: the entry is in no list

 private:
  friend class entry_map;
  friend class recent_list;
  entry(std::string_view key, std::uint8_t tag) noexcept;
  ~entry() { set_cached(nullptr); }
  struct links {
    entry *newer, *older;
  };

  entry* next_ = nullptr;  // chain of the bucket
  union {
    links list_{};  // links of the shard's list, if the entry is in one
    cache_entry* cached_;
  };

 public:
  value_ref current;             // null: ask the index (or the value is being loaded, or committed for the first time)
  bool is_volatile : 1 = false;  // `current` is the only copy; the index has no record
  bool committing : 1 = false;
  bool loading : 1 = false;                           // the shard knows which load
  bool listed : 1 = false, listed_small : 1 = false;  // in one of the shard's lists, because `current` is in memory

 private:
  bool is_cached_ : 1 = false;
  std::uint8_t tag_;  // part of the key's hash; differs for most others in the bucket
  std::uint16_t key_bytes_;
  char key_[4];  // the first bytes; the rest follows the object
  static constexpr std::size_t kKeyOffset = 36;
};
static_assert(sizeof(entry) == 40, "the key begins at its last four bytes");

class entry_map {
 public:
  entry_map() = default;
  ~entry_map();
  entry_map(const entry_map&) = delete;
  entry_map& operator=(const entry_map&) = delete;

  // This map uses all bits of the hash except the lowest kUnusedBits, which may choose among maps.
  static std::size_t hash_of(std::string_view key) noexcept { return std::hash<std::string_view>{}(key); }
  static constexpr unsigned kUnusedBits = 7;

  entry* find(std::string_view key) const noexcept { return find(key, hash_of(key)); }
  entry& add(std::string_view key) { return add(key, hash_of(key)); }
  // `hash` is hash_of(key), computed before a lock was taken.
  entry* find(std::string_view key, std::size_t hash) const noexcept;
  entry& add(std::string_view key, std::size_t hash);  // precondition: the key is absent and has at most 65535 bytes
  // Prefetch for several find() calls, so that their cache misses overlap. First fetch the buckets of all keys, then
  // their entries.
  void fetch_bucket(std::size_t hash) const noexcept {
    if (!buckets_.empty()) __builtin_prefetch(&buckets_[bucket_of(hash)]);
  }
  void fetch_entry(std::size_t hash) const noexcept {
    if (!buckets_.empty()) __builtin_prefetch(buckets_[bucket_of(hash)]);
  }
  // Fetches the value of the bucket's first entry, which is the wanted one in most cases.
  void fetch_value(std::size_t hash) const noexcept {
    const entry* const first = buckets_.empty() ? nullptr : buckets_[bucket_of(hash)];
    if (first != nullptr) __builtin_prefetch(first->current.get());
  }
  void erase(entry& one) noexcept;
  std::size_t size() const noexcept { return count_; }
  // Calls `each(entry&)` for all entries, in no particular order. It may erase the entry that it is given.
  template <class Each>
  void visit(const Each& each) {
    for (entry* first : buckets_)
      for (entry* one = first; one != nullptr;) {
        entry* const next = one->next_;
        each(*one);
        one = next;
      }
  }

 private:
  static constexpr std::size_t kMaxChain = 2;  // on average
  std::size_t bucket_of(std::size_t hash) const noexcept { return (hash >> kUnusedBits) & (buckets_.size() - 1); }
  static std::uint8_t tag_of(std::size_t hash) noexcept { return static_cast<std::uint8_t>(hash >> 56); }
  void grow();

  std::vector<entry*> buckets_;  // empty, or a power of two in size
  std::size_t count_ = 0;
};

// Entries ordered by last use. The list does not own them; each is in one list at most.
class recent_list {
 public:
  void add(entry& one) noexcept {  // as the newest
    one.list_.newer = nullptr;
    one.list_.older = first_;
    (first_ != nullptr ? first_->list_.newer : last_) = &one;
    first_ = &one;
  }
  void remove(entry& one) noexcept {
    (one.list_.newer != nullptr ? one.list_.newer->list_.older : first_) = one.list_.older;
    (one.list_.older != nullptr ? one.list_.older->list_.newer : last_) = one.list_.newer;
  }
  entry* last() const noexcept { return last_; }  // the oldest; null if the list is empty
  static entry* newer(const entry& one) noexcept { return one.list_.newer; }

 private:
  entry *first_ = nullptr, *last_ = nullptr;
};

}  // namespace pl::store
