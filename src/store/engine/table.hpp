// SPDX-License-Identifier: Apache-2.0
// What of the store is in memory: key -> current version, in shards with a lock each. A key that is not here is in the
// index, or nowhere. Readers hold a shard's lock only while they take a reference.
//
// An entry is here because its value is in memory, because its value is volatile (the index then does not know it),
// because a commit of the key is in progress, or because somebody is reading it from disk. These rules keep the cases
// apart:
//   committing  Set by the committer from reading the key's state until publishing the new one. Any other change of the key
//               goes through the committer meanwhile.
//   loading     Set by a thread that reads the value from disk to put it here. The committer clears it, so that no old
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

#include "arch/short_mutex.hpp"
#include "store/engine/entry_map.hpp"
#include "store/engine/types.hpp"
#include "store/engine/value.hpp"

namespace pl::store {

// A read from disk for which others wait. They share its outcome.
struct load {
  std::mutex mutex;
  std::condition_variable finished;
  bool done = false;
  failure reason;  // if `loaded` is null
  value_ref loaded;
};

class table {
 public:
  // The memory of this process that an entry takes beside its value: the key is stored here and, for a volatile value,
  // among its pool's names.
  static constexpr std::uint64_t kEntryBytes = 256;
  static std::uint64_t heap_bytes_of(std::string_view key) noexcept { return kEntryBytes + 2 * key.size(); }
  std::uint64_t heap_bytes() const noexcept { return heap_bytes_.load(std::memory_order_relaxed); }

  table() {
    for (shard& one : shards_) one.heap_bytes = &heap_bytes_;
  }
  table(const table&) = delete;
  table& operator=(const table&) = delete;

  // What a change of a key reads is in the first two cache lines.
  struct alignas(64) shard {
    short_mutex mutex;
    entry_map entries;
    // Keys whose latest change is visible here, while the request behind it is not remembered yet (committer::publish).
    std::vector<std::string_view> unlogged;
    // The greatest version of the changes made here. A version reserved earlier is not used below it, so that a key's
    // versions grow, also across an erase.
    version_t last_version = 0;
    recent_list recent;
    // Lasting values that share a block; eviction considers only these to make room for others of their kind.
    recent_list recent_small;
    std::atomic<std::uint64_t>* heap_bytes = nullptr;               // of all shards
    std::unordered_map<const entry*, std::shared_ptr<load>> loads;  // of those that are loading

    // Precondition of all: the mutex is held.
    bool is_newest(version_t version) const noexcept { return version > last_version; }
    void note_version(version_t version) noexcept { last_version = std::max(last_version, version); }
    bool is_unlogged(std::string_view key) const noexcept {
      return std::find(unlogged.begin(), unlogged.end(), key) != unlogged.end();
    }
    entry* find(std::string_view key) const { return entries.find(key); }
    entry* find(std::string_view key, std::size_t hash) const { return entries.find(key, hash); }
    entry& need(std::string_view key);
    entry& add(std::string_view key) { return add(key, entry_map::hash_of(key)); }
    entry& add(std::string_view key, std::size_t hash);  // precondition: find(key) is null
    // Maintains the lists; returns the previous value, to be released after unlocking.
    value_ref set_current(entry& key_entry, value_ref next);
    void touch(entry& key_entry) {
      if (cache_entry* const cached = key_entry.cached()) return cached->owner->used(*cached);
      auto& mine = list_of(key_entry.listed_small);
      if (!key_entry.listed) return;
      mine.remove(key_entry);
      mine.add(key_entry);
    }
    recent_list& list_of(bool small) { return small ? recent_small : recent; }
    // Null if it is not loading.
    std::shared_ptr<load> load_of(const entry& key_entry) const;
    void set_load(entry& key_entry, std::shared_ptr<load> next);  // null: it is no longer loading
    // Drops an entry without any state.
    void drop_if_empty(entry& key_entry);
  };

  shard& shard_of(std::string_view key) { return shard_with(entry_map::hash_of(key)); }
  shard& shard_with(std::size_t hash) { return shards_[hash % kShards]; }  // entry_map::hash_of(key)
  static constexpr std::size_t kShards = std::size_t{1} << entry_map::kUnusedBits;
  shard& shard_at(std::size_t number) { return shards_[number % kShards]; }

 private:
  std::atomic<std::uint64_t> heap_bytes_{0};
  std::array<shard, kShards> shards_;
};

}  // namespace pl::store
