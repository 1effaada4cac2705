// SPDX-License-Identifier: Apache-2.0
// entry_map against std::map, and the shapes of a value: what is counted must come back.
#include "store/engine/entry_map.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "store/engine/arena.hpp"

namespace pl::store {
namespace {

TEST(EntryMap, AgreesWithAMapWhateverComesAndGoes) {
  std::mt19937_64 random(7);
  entry_map all;
  std::map<std::string, entry*> model;
  for (int i = 0; i < 60'000; ++i) {
    // From no byte to the longest key, mostly short.
    const std::size_t bytes = i % 1000 == 0 ? 4100 : random() % 24;
    std::string key = std::to_string(random() % 3000);
    key.resize(bytes, 'k');
    const auto known = model.find(key);
    ASSERT_EQ(all.find(key), known == model.end() ? nullptr : known->second) << key;
    if (known == model.end()) {
      entry& made = all.add(key);
      EXPECT_EQ(made.key(), key);
      EXPECT_FALSE(made.current || made.is_volatile || made.committing || made.loading || made.listed);
      EXPECT_EQ(made.cached(), nullptr);
      model[key] = &made;
    } else if (random() % 3 == 0) {
      all.erase(*known->second);
      model.erase(known);
    }
    ASSERT_EQ(all.size(), model.size());
  }
  // Each once, and each may go while it is visited.
  std::size_t visited = 0;
  all.visit([&](entry& one) {
    ++visited;
    ASSERT_EQ(model.at(std::string(one.key())), &one);
    if (visited % 2 == 0) all.erase(one);
  });
  EXPECT_EQ(visited, model.size());
  EXPECT_EQ(all.size(), model.size() - model.size() / 2);
}

TEST(EntryMap, AnEntryIsInAListOrOfACache) {
  entry_map all;
  recent_list recent;
  entry &a = all.add("a"), &b = all.add("b");
  recent.add(a), recent.add(b);
  EXPECT_EQ(recent.last(), &a);
  EXPECT_EQ(recent_list::newer(a), &b);
  recent.remove(a);
  auto made = std::make_unique<cache_entry>();
  made->set_key(a.key());
  a.set_cached(std::move(made));
  ASSERT_NE(a.cached(), nullptr);
  EXPECT_EQ(a.cached()->key(), "a");
  a.set_cached(nullptr);
  EXPECT_EQ(a.cached(), nullptr);
  recent.add(a);
  EXPECT_EQ(recent_list::newer(b), &a);
  EXPECT_EQ(recent.last(), &b);
  a.set_cached(nullptr);  // the map frees one that is still of a cache, too
  b.set_cached(std::make_unique<cache_entry>());
}

class Value : public testing::Test {
 protected:
  Value() : memory_(std::move(*arena::make(1 << 20, 1 << 20, false))), home_{*memory_, *no_extents()} {}
  // Never used here: no value of these tests has extents of its own.
  static extents* no_extents() { return reinterpret_cast<extents*>(alignof(std::max_align_t)); }
  std::unique_ptr<arena> memory_;
  value_storage home_;
};

TEST_F(Value, MemoryComesBackWithTheLastReference) {
  for (const std::uint64_t bytes : {std::uint64_t{1}, std::uint64_t{100}, arena::kSlotBytes, std::uint64_t{5000}}) {
    value_ref one = value::make(home_, bytes);
    EXPECT_FALSE(one->in_memory());
    one->set_segments(*memory_->allocate(bytes));
    EXPECT_TRUE(one->in_memory());
    std::uint64_t held = 0;
    for (const auto& piece : one->spans()) held += piece.size();
    EXPECT_EQ(held, bytes);
    EXPECT_GT(memory_->used_bytes(), 0u);
    value_ref other = one;
    EXPECT_EQ(other, one);
    EXPECT_EQ(one.use_count(), 2u);
    one.reset();
    EXPECT_GT(memory_->used_bytes(), 0u);
    value_ref last = std::move(other);
    EXPECT_EQ(last.use_count(), 1u);
    last = nullptr;
    EXPECT_EQ(memory_->used_bytes(), 0u) << bytes;
  }
  EXPECT_TRUE(value::make(home_, 0)->in_memory());
}

TEST_F(Value, KeepsItsPlaceWhenItGetsExtentsOrACache) {
  const auto cache = std::make_shared<pool_cache>(cache_terms{}, 1 << 20);
  const auto one = value::make(home_, 100);
  one->set_segments(*memory_->allocate(100));
  const std::uint64_t place = one->segments()[0].offset_bytes;
  EXPECT_TRUE(one->on_disk().empty());
  EXPECT_EQ(one->cache(), nullptr);
  one->join_cache(nullptr, 5);
  EXPECT_EQ(one->cache(), nullptr);
  one->join_cache(cache, 5);
  EXPECT_EQ(one->cache(), cache.get());
  EXPECT_NE(one->expires_ns(), 0u);
  one->set_on_disk({{4096, 4096}});
  one->append_on_disk({{16384, 4096}});
  EXPECT_EQ(one->on_disk().size(), 2u);
  ASSERT_EQ(one->segments().size(), 1u);
  EXPECT_EQ(one->segments()[0].offset_bytes, place);
  EXPECT_EQ(one->segments()[0].size_bytes, 100u);
  one->version = 7, one->crc = 8, one->written_unix_ns = 9, one->user_flags = 10;
  const auto twin = value::make(home_, 100);
  twin->take_identity(*one);
  EXPECT_EQ(twin->cache(), cache.get());
  EXPECT_EQ(twin->expires_ns(), one->expires_ns());
  EXPECT_EQ(twin->version, 7u);
  EXPECT_EQ(twin->crc, 8u);
  EXPECT_EQ(twin->written_unix_ns, 9);
  EXPECT_EQ(twin->user_flags, 10u);
  EXPECT_TRUE(twin->segments().empty() && twin->on_disk().empty());
  EXPECT_EQ(cache.use_count(), 3);
}

TEST_F(Value, OfSeveralPieces) {
  std::vector<segment> held;  // leaves holes of a block between
  for (int i = 0; i < 8; ++i) held.push_back(memory_->allocate(4096)->front());
  std::vector<segment> pieces;
  for (int i = 0; i < 8; i += 2) pieces.push_back(held[static_cast<std::size_t>(i)]);
  {
    const auto one = value::make(home_, 4 * 4096);
    one->set_segments(pieces);
    ASSERT_EQ(one->segments().size(), 4u);
    EXPECT_EQ(one->segments()[3].offset_bytes, pieces[3].offset_bytes);
    EXPECT_EQ(one->segments().copy().size(), 4u);
  }
  EXPECT_EQ(memory_->used_bytes(), 4u * 4096);
  for (int i = 1; i < 8; i += 2) memory_->release({&held[static_cast<std::size_t>(i)], 1});
  EXPECT_EQ(memory_->used_bytes(), 0u);
}

}  // namespace
}  // namespace pl::store
