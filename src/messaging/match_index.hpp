// SPDX-License-Identifier: Apache-2.0
// A hash table of first-in first-out lists, one for each key: what tag_match.hpp finds receives and messages by.
//
// An insertion, a removal from anywhere and the look at a key's oldest entry take constant time on average, however many
// entries share a key and however many keys there are: only the oldest entry of each key lies in a bucket, and the table
// doubles before it holds more keys than buckets.
//
// Owns: the entries, which are recycled; the operations stay the pool's. Threads: those of its user. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pl::messaging {

struct operation;

// Everything with the same source (or any), mask, and bits of the tag under that mask.
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
  std::uint64_t order = 0;            // of insertion
  match_entry* next_key = nullptr;    // in the bucket; of the oldest entry of a key
  match_entry* newest = nullptr;      // of the key; of its oldest entry
  match_entry* older = nullptr;       // of the key
  match_entry* newer = nullptr;       // of the key
  match_entry* next_of_op = nullptr;  // the same operation under another key
};

class match_index {
 public:
  match_index() : buckets_(kMinBuckets, nullptr) {}

  match_entry& insert(const match_key& key, operation& op);
  void remove(match_entry& entry) noexcept;
  // The oldest entry of this key; null: none.
  match_entry* first(const match_key& key) noexcept {
    if (recent_ != nullptr && recent_->key == key) return ++comparisons_, recent_;
    return find(key, hash_of(key));
  }
  // Entries that were compared with a key since the start: the work of matching, whatever the machine's speed.
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
  match_entry* recent_ = nullptr;  // the oldest of the key that was asked for last, while it lies in a bucket
  std::vector<std::unique_ptr<match_entry[]>> blocks_;
  match_entry* free_ = nullptr;  // through next_key
  std::uint64_t inserted_ = 0;
  std::uint64_t comparisons_ = 0;
};

}  // namespace pl::messaging
