// SPDX-License-Identifier: Apache-2.0
#include "messaging/match_index.hpp"

namespace pl::messaging {

// Tags differ in few bits, often the high ones, so every bit of the key must reach the low bits of the result.
std::size_t match_index::bucket_of(const match_key& key) const noexcept {
  std::uint64_t x = key.word + static_cast<std::uint64_t>(key.source) * 0x9e3779b97f4a7c15ull;
  x ^= key.mask * 0xd6e8feb86659fd93ull + (key.is_sender_operation ? 1 : 0);
  x = (x ^ x >> 32) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 29) * 0x94d049bb133111ebull;
  return (x ^ x >> 32) & (buckets_.size() - 1);
}

match_entry& match_index::insert(const match_key& key, operation& op) {
  match_entry& fresh = take_entry();
  fresh = {.key = key, .op = &op, .order = inserted_++};
  if (match_entry* const head = first(key)) {
    fresh.older = head->newest;
    head->newest->newer = &fresh;
    head->newest = &fresh;
    return fresh;
  }
  if (keys_ == buckets_.size()) grow();
  ++keys_;
  match_entry*& bucket = buckets_[bucket_of(key)];
  fresh.newest = &fresh;
  fresh.next_key = bucket;
  bucket = &fresh;
  return fresh;
}

void match_index::remove(match_entry& entry) noexcept {
  match_entry* const after = entry.newer;
  if (after != nullptr) after->older = entry.older;
  if (entry.older != nullptr) {
    entry.older->newer = after;
    if (after == nullptr) first(entry.key)->newest = entry.older;
  } else {
    match_entry** place = &buckets_[bucket_of(entry.key)];
    for (; *place != &entry; place = &(*place)->next_key) ++comparisons_;
    if (after == nullptr) {
      *place = entry.next_key;
      --keys_;
    } else {
      *place = after;
      after->next_key = entry.next_key;
      after->newest = entry.newest;
    }
  }
  entry.next_key = free_;
  free_ = &entry;
}

match_entry* match_index::first(const match_key& key) noexcept {
  match_entry* head = buckets_[bucket_of(key)];
  for (; head != nullptr; head = head->next_key) {
    ++comparisons_;
    if (head->key == key) break;
  }
  return head;
}

match_entry& match_index::take_entry() {
  if (free_ == nullptr) {
    blocks_.push_back(std::make_unique<match_entry[]>(kBlock));
    for (std::size_t i = kBlock; i-- > 0;) {
      blocks_.back()[i].next_key = free_;
      free_ = &blocks_.back()[i];
    }
  }
  match_entry& taken = *free_;
  free_ = taken.next_key;
  return taken;
}

void match_index::grow() {
  std::vector<match_entry*> old(buckets_.size() * 2, nullptr);
  old.swap(buckets_);
  for (match_entry* head : old)
    while (head != nullptr) {
      match_entry* const next = head->next_key;
      match_entry*& bucket = buckets_[bucket_of(head->key)];
      head->next_key = bucket;
      bucket = head;
      head = next;
    }
}

}  // namespace pl::messaging
