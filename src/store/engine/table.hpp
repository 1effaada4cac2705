// SPDX-License-Identifier: Apache-2.0
// What of the store is in memory: key -> current version, in shards with a lock each. A key that is not here is in the
// index, or nowhere. Readers hold a shard's lock for as long as it takes to count a reference up.
//
// An entry is here because its value is in memory, because its value is volatile (then the index knows nothing of it),
// because a commit of the key is under way, or because somebody is reading it from disk. The rules that keep these apart:
//   committing  set by the committer from reading the key's state to publishing the new one. Another change of the key
//               goes through the committer meanwhile.
//   loading     set by a thread that reads the value from disk to put it here. The committer clears it, so that no old
//               value replaces a newer one.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/engine/types.hpp"
#include "store/engine/value.hpp"

namespace pl::store {

// A read from disk that others wait for. Its outcome is theirs.
struct load {
  std::mutex mutex;
  std::condition_variable finished;
  bool done = false;
  failure reason;  // if `loaded` is null
  value_ref loaded;
};

struct entry {
  value_ref current;         // null: see the index (or it is being loaded or committed for the first time)
  bool is_volatile = false;  // current is the truth, the index has no record
  bool committing = false;
  bool listed = false, listed_small = false;  // in one of the shard's lists: current is in memory
  std::shared_ptr<load> loading;
  const std::string* key = nullptr;          // of this entry, in the map
  entry *newer = nullptr, *older = nullptr;  // in that list
  std::unique_ptr<cache_entry> cached;       // the pool is a cache, which then knows the value instead of the shard's lists
};

// Entries by their last use. They lie elsewhere, and are in one list at most.
class recent_list {
 public:
  void add(entry& one) noexcept {  // as the newest
    one.newer = nullptr;
    one.older = first_;
    (first_ != nullptr ? first_->newer : last_) = &one;
    first_ = &one;
  }
  void remove(entry& one) noexcept {
    (one.newer != nullptr ? one.newer->older : first_) = one.older;
    (one.older != nullptr ? one.older->newer : last_) = one.newer;
  }
  entry* last() const noexcept { return last_; }  // the oldest; null: it is empty

 private:
  entry *first_ = nullptr, *last_ = nullptr;
};

class table {
 public:
  struct hash {
    using is_transparent = void;
    // Not noexcept: libstdc++ then keeps each key's hash beside it, and a look-up does not hash its neighbours again.
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  // What an entry takes of this process's memory beside its value: the key is here, and, of a volatile value, among its
  // pool's names.
  static constexpr std::uint64_t kEntryBytes = 512;
  static std::uint64_t heap_bytes_of(std::string_view key) noexcept { return kEntryBytes + 2 * key.size(); }
  std::uint64_t heap_bytes() const noexcept { return heap_bytes_.load(std::memory_order_relaxed); }

  table() {
    for (shard& one : shards_) one.heap_bytes = &heap_bytes_;
  }
  table(const table&) = delete;
  table& operator=(const table&) = delete;

  struct shard {
    std::mutex mutex;
    std::atomic<std::uint64_t>* heap_bytes = nullptr;  // of all shards
    std::unordered_map<std::string, entry, hash, std::equal_to<>> entries;
    recent_list recent;
    recent_list recent_small;  // those that are lasting and share a block: eviction takes them for their like alone

    // Keys whose newest change can be seen here already, while the request behind it is not remembered yet
    // (committer::publish).
    std::vector<std::string_view> unremembered;

    // All with the mutex held.
    bool is_unremembered(std::string_view key) const noexcept {
      return std::find(unremembered.begin(), unremembered.end(), key) != unremembered.end();
    }
    entry* find(std::string_view key) {
      const auto found = entries.find(key);
      return found == entries.end() ? nullptr : &found->second;
    }
    entry& need(std::string_view key);
    entry& add(std::string_view key);                    // precondition: find(key) is null
    void set_current(entry& key_entry, value_ref next);  // keeps the list
    void touch(entry& key_entry) {
      if (key_entry.cached) return key_entry.cached->owner->used(*key_entry.cached);
      auto& mine = list_of(key_entry.listed_small);
      if (!key_entry.listed) return;
      mine.remove(key_entry);
      mine.add(key_entry);
    }
    recent_list& list_of(bool small) { return small ? recent_small : recent; }
    // Drops an entry that holds no state any more.
    void drop_if_empty(entry& key_entry);
  };

  shard& shard_of(std::string_view key) { return shards_[hash{}(key) % kShards]; }
  static constexpr std::size_t kShards = 64;
  shard& shard_at(std::size_t number) { return shards_[number % kShards]; }

 private:
  std::atomic<std::uint64_t> heap_bytes_{0};
  std::array<shard, kShards> shards_;
};

}  // namespace pl::store
