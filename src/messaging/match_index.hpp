// SPDX-License-Identifier: Apache-2.0
// A hash table of FIFO lists, one for each key. tag_match.hpp uses it to find receives and messages.
//
// Insertion, removal of any entry and lookup of a key's oldest entry take constant time on average, for any number of
// entries and keys. Only the oldest entry of each key is in a bucket, and the table doubles before it has more keys than
// buckets.
//
// Owns: the entries, which are recycled; the pool owns the operations. Threads: not thread-safe. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pl::messaging {

struct operation;

// Selects all entries with the same source (or any source), the same mask, and the same tag bits under that mask.
struct match_key {
  int source = 0;
  bool is_sender_operation = false;  // `word` is the sender's operation, not a tag
  std::uint64_t mask = 0;
  std::uint64_t word = 0;
  bool operator==(const match_key&) const = default;
};

struct match_entry {
  match_key key;
  std::uint64_t hash = 0;
  operation* op = nullptr;
  std::uint64_t order = 0;            // counts insertions
  match_entry* next_key = nullptr;    // next key in the bucket; only in the oldest entry of a key
  match_entry* newest = nullptr;      // newest entry of the key; only in the oldest entry
  match_entry* older = nullptr;       // neighbour with the same key
  match_entry* newer = nullptr;       // neighbour with the same key
  match_entry* next_of_op = nullptr;  // entry of the same operation under another key
};

class match_index {
 public:
  match_index() : buckets_(kMinBuckets, nullptr) {}

  match_entry& insert(const match_key& key, operation& op);
  void remove(match_entry& entry) noexcept;
  // Returns the oldest entry of this key; null: none.
  match_entry* first(const match_key& key) noexcept {
    if (recent_ != nullptr && recent_->key == key) return ++comparisons_, recent_;
    return find(key, hash_of(key));
  }
  // Number of entries that were compared with a key since the start. Measures the work of matching on any machine.
  std::uint64_t comparisons() const noexcept { return comparisons_; }

 private:
  static constexpr std::size_t kMinBuckets = 256, kBlock = 256;
  static std::uint64_t hash_of(const match_key& key) noexcept;
  match_entry*& bucket_of(std::uint64_t hash) noexcept { return buckets_[hash & (buckets_.size() - 1)]; }
  match_entry* find(const match_key& key, std::uint64_t hash) noexcept;
  match_entry& take_entry();
  void grow();

  std::vector<match_entry*> buckets_;  // a power of two of them
  std::size_t keys_ = 0;
  match_entry* recent_ = nullptr;  // oldest entry of the last key looked up, while it is in a bucket
  std::vector<std::unique_ptr<match_entry[]>> blocks_;
  match_entry* free_ = nullptr;  // through next_key
  std::uint64_t inserted_ = 0;
  std::uint64_t comparisons_ = 0;
};

}  // namespace pl::messaging
