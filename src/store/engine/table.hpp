// SPDX-License-Identifier: Apache-2.0
// What of the store is in memory: key -> current version, in shards with a lock each. A key that is not here is in the
// index, or nowhere. Readers hold a shard's lock for as long as it takes to count a reference up.
//
// An entry is here because its value is in memory, because its value is volatile (then the index knows nothing of it),
// because a commit of the key is under way, or because somebody is reading it from disk. The rules that keep these apart:
//   committing  set by the committer from reading the key's state to publishing the new one. Who wants to change the key
//               meanwhile goes through the committer too.
//   loading     set by who reads the value from disk and wants to put it here. The committer takes it away, so that nothing
//   old
//               is put in after something new.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
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
  failure why;  // if `loaded` is null
  value_ref loaded;
};

struct entry {
  value_ref current;         // null: see the index (or it is being loaded or committed for the first time)
  bool is_volatile = false;  // current is the truth, the index has no record
  bool committing = false;
  std::shared_ptr<load> loading;
  const std::string* key = nullptr;    // of this entry, in the map
  std::list<entry*>::iterator recent;  // in the shard's list, if current is in memory
  bool listed = false, listed_small = false;
};

class table {
 public:
  struct hash {
    using is_transparent = void;
    // Not noexcept: libstdc++ then keeps each key's hash beside it, and a look-up does not hash its neighbours again.
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  struct shard {
    std::mutex mutex;
    std::unordered_map<std::string, entry, hash, std::equal_to<>> entries;
    std::list<entry*> recent;  // front: used last
    std::list<entry*>
        recent_small;  // of these those that are lasting and share a block: eviction takes them for their like alone

    // All with the mutex held.
    entry* find(std::string_view key) {
      const auto at = entries.find(key);
      return at == entries.end() ? nullptr : &at->second;
    }
    entry& need(std::string_view key);
    entry& add(std::string_view key);             // precondition: find(key) is null
    void set_current(entry& at, value_ref next);  // keeps the list
    void touch(entry& at) {
      auto& mine = list_of(at.listed_small);
      if (at.listed) mine.splice(mine.begin(), mine, at.recent);
    }
    std::list<entry*>& list_of(bool small) { return small ? recent_small : recent; }
    // Forgets an entry that says nothing any more.
    void drop_if_empty(entry& at);
  };

  shard& of(std::string_view key) { return shards_[hash{}(key) % kShards]; }
  static constexpr std::size_t kShards = 64;
  shard& at(std::size_t number) { return shards_[number % kShards]; }

 private:
  std::array<shard, kShards> shards_;
};

}  // namespace pl::store
