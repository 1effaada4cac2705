// SPDX-License-Identifier: Apache-2.0
// The order in which blocks are given to an engine: a permutation of them, by their places.
#include "copy/block_order.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

namespace pl::copy {
namespace {

std::vector<std::uint32_t> random_places(std::size_t count, std::uint32_t last, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint32_t> places(count);
  for (auto& one : places) one = static_cast<std::uint32_t>(random() % (std::uint64_t{last} + 1));
  return places;
}

bool helps(const std::vector<std::uint32_t>& places, std::uint64_t block_bytes = 4096) {
  return block_order::helps(places.size(), block_bytes, [&](std::size_t i) { return places[i]; });
}

TEST(BlockOrder, OnlyLongListsOfSmallBlocksOutOfOrderAreSorted) {
  const auto random = random_places(4096, 1u << 20, 1);
  EXPECT_TRUE(helps(random));
  EXPECT_TRUE(helps(random, block_order::kMaxBlockBytes));
  EXPECT_FALSE(helps(random, block_order::kMaxBlockBytes + 1));
  EXPECT_FALSE(helps({random.begin(), random.begin() + block_order::kMinBlocks - 1}));
  EXPECT_TRUE(helps({random.begin(), random.begin() + block_order::kMinBlocks}));
  EXPECT_FALSE(helps({}));
  std::vector<std::uint32_t> ordered(4096);
  std::iota(ordered.begin(), ordered.end(), 7);
  EXPECT_FALSE(helps(ordered));
  EXPECT_FALSE(helps(std::vector<std::uint32_t>(4096, 5))) << "all in one place";
  // A few runs, each in order, as several sequences of a cache are.
  for (std::size_t i = 0; i < ordered.size(); ++i) ordered[i] = static_cast<std::uint32_t>(i * 100 % 4099);
  EXPECT_FALSE(helps(ordered)) << "runs of 40";
  std::reverse(ordered.begin(), ordered.end());
  EXPECT_TRUE(helps(ordered));
}

// Each count of passes, ranges that begin anywhere, and the largest places.
TEST(BlockOrder, EachBlockIsThereOnceAndPlacesAscend) {
  struct shape {
    std::size_t count;
    std::uint32_t least, span;
  };
  block_order order;
  std::uint64_t seed = 1;
  for (const shape& one : {shape{1, 9, 0}, shape{2, 0, 1}, shape{255, 3, 200}, shape{256, 0, 0}, shape{1000, 0, 65535},
                           shape{1000, 4'000'000'000u, 65535}, shape{4096, 5, 2000}, shape{5000, 12, 2047},
                           shape{5000, 12, 2048}, shape{60000, 1u << 30, 65535}}) {
    auto places = random_places(one.count, one.span, seed++);
    for (auto& place : places) place += one.least;
    const auto entry_of = [&](std::size_t i) { return block_order::entry{places[i], static_cast<std::uint32_t>(i)}; };
    const auto sorted = order.sort(0, one.count, entry_of);
    ASSERT_EQ(sorted.size(), one.count);
    std::vector<bool> seen(one.count);
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      ASSERT_LT(sorted[i].tag, one.count);
      ASSERT_FALSE(seen[sorted[i].tag]) << one.count << " blocks, place " << i;
      seen[sorted[i].tag] = true;
      ASSERT_EQ(sorted[i].place, places[sorted[i].tag]);
      if (i != 0) {
        ASSERT_LE(sorted[i - 1].place, sorted[i].place) << one.count << " blocks over " << one.span;
        if (sorted[i - 1].place == sorted[i].place) {
          ASSERT_LT(sorted[i - 1].tag, sorted[i].tag) << "blocks of one page keep their order";
        }
      }
    }
  }
}

// Where it is known that all places are below a number, the order is the same, whether the digits are counted at once or
// not.
TEST(BlockOrder, AKnownEndOfThePlacesChangesNothing) {
  for (const std::uint64_t end : {1ull, 2ull, 255ull, 256ull, 257ull, 20481ull, 65535ull, 65536ull, 65537ull, 1ull << 20}) {
    auto places = random_places(3000, static_cast<std::uint32_t>(std::min<std::uint64_t>(end, 65536) - 1), end);
    places[7] = static_cast<std::uint32_t>(std::min<std::uint64_t>(end, 65536) - 1);
    block_order order, other;
    const auto entry_of = [&](std::size_t i) { return block_order::entry{places[i], static_cast<std::uint32_t>(i)}; };
    const auto known = order.sort(0, places.size(), entry_of, end);
    const auto found = other.sort(0, places.size(), entry_of);
    ASSERT_EQ(known.size(), found.size());
    for (std::size_t i = 0; i < known.size(); ++i) {
      ASSERT_EQ(known[i].place, found[i].place) << end << ", block " << i;
      ASSERT_EQ(known[i].tag, found[i].tag) << end << ", block " << i;
    }
  }
}

// The caller's numbers may change while they are read: no place is written behind the list's end.
TEST(BlockOrder, PlacesBehindTheirKnownEndStayInTheList) {
  const auto places = random_places(1000, UINT32_MAX, 5);
  block_order order;
  const auto sorted = order.sort(
      0, places.size(),
      [&](std::size_t i) {
        return block_order::entry{places[i], static_cast<std::uint32_t>(i)};
      },
      300);
  std::set<std::uint32_t> tags;
  for (const auto& one : sorted) tags.insert(one.tag);
  EXPECT_EQ(tags.size(), places.size());
}

// Places over more than two passes tell apart: those of one region stay as they were, regions ascend.
TEST(BlockOrder, RegionsAscendWherePlacesLieFarApart) {
  for (const std::size_t count : {std::size_t{300}, std::size_t{20000}}) {
    const auto places = random_places(count, UINT32_MAX, count);
    block_order order;
    const auto sorted = order.sort(0, count, [&](std::size_t i) {
      return block_order::entry{places[i], static_cast<std::uint32_t>(i)};
    });
    const std::uint32_t least = *std::min_element(places.begin(), places.end());
    const std::uint32_t last = *std::max_element(places.begin(), places.end());
    const auto shift = static_cast<unsigned>(std::bit_width(last - least)) - 16;
    for (std::size_t i = 1; i < count; ++i)
      ASSERT_LE((sorted[i - 1].place - least) >> shift, (sorted[i].place - least) >> shift) << i;
  }
}

TEST(BlockOrder, APartOfAListIsSortedByItself) {
  const auto places = random_places(1000, 5000, 3);
  block_order order;
  const auto entry_of = [&](std::size_t i) { return block_order::entry{places[i], static_cast<std::uint32_t>(i)}; };
  std::set<std::uint32_t> tags;
  for (const auto& one : order.sort(0, 128, entry_of)) tags.insert(one.tag);
  EXPECT_EQ(tags.size(), 128u);
  EXPECT_EQ(*tags.rbegin(), 127u);
  for (const auto& one : order.sort(128, 1000, entry_of)) tags.insert(one.tag);
  EXPECT_EQ(tags.size(), 1000u);
  EXPECT_GE(block_order::head(block_order::kMinBlocks), 1u);
  EXPECT_LT(block_order::head(block_order::kMinBlocks), block_order::kMinBlocks);
}

}  // namespace
}  // namespace pl::copy
