// SPDX-License-Identifier: Apache-2.0
#include "messaging/match_index.hpp"

namespace pl::messaging {

// Tags differ in few bits, often the high ones, so every bit of the key must reach the low bits of the result.
std::uint64_t match_index::hash_of(const match_key& key) noexcept {
  std::uint64_t x = key.word + static_cast<std::uint64_t>(key.source) * 0x9e3779b97f4a7c15ull;
  x ^= key.mask * 0xd6e8feb86659fd93ull + (key.is_sender_operation ? 1 : 0);
  x = (x ^ x >> 32) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 29) * 0x94d049bb133111ebull;
  return x ^ x >> 32;
}

match_entry& match_index::insert(const match_key& key, operation& op) {
  match_entry& fresh = take_entry();
  fresh = {.key = key, .op = &op, .order = inserted_++};
  const bool is_recent = recent_ != nullptr && recent_->key == key;
  fresh.hash = is_recent ? recent_->hash : hash_of(key);
  if (match_entry* const head = is_recent ? recent_ : find(key, fresh.hash)) {
    fresh.older = head->newest;
    head->newest->newer = &fresh;
    head->newest = &fresh;
    return fresh;
  }
  if (keys_ == buckets_.size()) grow();
  ++keys_;
  match_entry*& bucket = bucket_of(fresh.hash);
  fresh.newest = &fresh;
  fresh.next_key = bucket;
  bucket = recent_ = &fresh;
  return fresh;
}

void match_index::remove(match_entry& entry) noexcept {
  match_entry* const after = entry.newer;
  if (after != nullptr) after->older = entry.older;
  if (entry.older != nullptr) {
    entry.older->newer = after;
    if (after == nullptr) first(entry.key)->newest = entry.older;
  } else {
    match_entry** place = &bucket_of(entry.hash);
    for (; *place != &entry; place = &(*place)->next_key) ++comparisons_;
    if (recent_ == &entry) recent_ = after;
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

match_entry* match_index::find(const match_key& key, std::uint64_t hash) noexcept {
  match_entry* head = bucket_of(hash);
  for (; head != nullptr; head = head->next_key) {
    ++comparisons_;
    if (head->key == key) return recent_ = head;
  }
  return nullptr;
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
      match_entry*& bucket = bucket_of(head->hash);
      head->next_key = bucket;
      bucket = head;
      head = next;
    }
}

}  // namespace pl::messaging
