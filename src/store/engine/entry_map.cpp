// SPDX-License-Identifier: Apache-2.0
#include "store/engine/entry_map.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace pl::store {

entry::entry(std::string_view key, std::uint8_t tag) noexcept
    : tag_(tag), key_bytes_(static_cast<std::uint16_t>(key.size())) {
  // The key lies past the object's end, in the block that entry_map::add() allocated.
  std::memcpy(reinterpret_cast<char*>(this) + kKeyOffset, key.data(), key.size());
}

void entry::set_cached(std::unique_ptr<cache_entry> next) noexcept {
  if (is_cached_) delete cached_;
  is_cached_ = next != nullptr;
  if (is_cached_) cached_ = next.release();
  else list_ = {};
}

entry_map::~entry_map() {
  visit([](entry& one) {
    one.~entry();
    ::operator delete(&one);
  });
}

entry* entry_map::find(std::string_view key, std::size_t hash) const noexcept {
  if (buckets_.empty()) return nullptr;
  for (entry* one = buckets_[bucket_of(hash)]; one != nullptr; one = one->next_)
    if (one->tag_ == tag_of(hash) && one->key() == key) return one;
  return nullptr;
}

entry& entry_map::add(std::string_view key, std::size_t hash) {
  if (count_ >= kMaxChain * buckets_.size()) grow();
  void* const room = ::operator new(std::max(sizeof(entry), entry::kKeyOffset + key.size()));
  entry* const made = new (room) entry(key, tag_of(hash));
  entry*& bucket = buckets_[bucket_of(hash)];
  made->next_ = std::exchange(bucket, made);
  ++count_;
  return *made;
}

void entry_map::erase(entry& one) noexcept {
  entry** place = &buckets_[bucket_of(hash_of(one.key()))];
  while (*place != &one) place = &(*place)->next_;
  *place = one.next_;
  --count_;
  one.~entry();
  ::operator delete(&one);
}

void entry_map::grow() {
  std::vector<entry*> next(std::max<std::size_t>(2 * buckets_.size(), 8), nullptr);
  std::swap(buckets_, next);
  for (entry* first : next)
    while (first != nullptr) {
      entry* const one = std::exchange(first, first->next_);
      entry*& bucket = buckets_[bucket_of(hash_of(one->key()))];
      one->next_ = std::exchange(bucket, one);
    }
}

}  // namespace pl::store
