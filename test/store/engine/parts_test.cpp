// SPDX-License-Identifier: Apache-2.0
// The engine's small parts against models: space, memory, records.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "store/engine/arena.hpp"
#include "store/engine/owners.hpp"
#include "store/engine/record.hpp"
#include "store/engine/space_map.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

constexpr std::uint64_t kRegion = 64 * kBlockBytes;

// Every allocation is compared with a map of blocks.
TEST(SpaceMap, AgreesWithAMapOfBlocks) {
  std::mt19937 random(7);
  space_map space(kRegion);
  space.add({0, 4 * kRegion});
  std::vector<bool> used(4 * 64);
  std::vector<std::vector<segment>> held;
  const auto mark = [&](const std::vector<segment>& pieces, bool in_use) {
    for (const segment& piece : pieces) {
      EXPECT_EQ(piece.offset_bytes / kRegion, (piece.offset_bytes + piece.size_bytes - 1) / kRegion) << "crosses a border";
      for (std::uint64_t offset = piece.offset_bytes; offset < piece.offset_bytes + piece.size_bytes;
           offset += kBlockBytes) {
        ASSERT_NE(used[offset / kBlockBytes], in_use);
        used[offset / kBlockBytes] = in_use;
      }
    }
  };
  for (int step = 0; step < 5000; ++step) {
    const auto free = static_cast<std::uint64_t>(std::count(used.begin(), used.end(), false));
    ASSERT_EQ(space.free_bytes(), free * kBlockBytes);
    if (random() % 2 == 0) {
      const std::uint64_t blocks = random() % (random() % 8 == 0 ? 100 : 9);
      auto pieces = space.allocate(blocks * kBlockBytes - (blocks > 0 ? random() % kBlockBytes : 0));
      ASSERT_EQ(pieces.has_value(), blocks <= free);  // at most 100 pieces here, fewer than the limit
      if (!pieces) continue;
      std::uint64_t got = 0;
      for (const segment& piece : *pieces) got += piece.size_bytes;
      ASSERT_EQ(got, blocks * kBlockBytes);
      mark(*pieces, true);
      held.push_back(std::move(*pieces));
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      mark(held.back(), false);
      space.release(held.back());
      held.pop_back();
    }
  }
}

TEST(SpaceMap, TakesExactlyWhatIsFree) {
  space_map space(kRegion);
  space.add({kRegion, 2 * kRegion});  // no first region
  EXPECT_FALSE(space.take({0, kBlockBytes}));
  EXPECT_TRUE(space.take({kRegion + kBlockBytes, kBlockBytes}));
  EXPECT_FALSE(space.take({kRegion, 2 * kBlockBytes}));
  EXPECT_FALSE(space.take({kRegion + kBlockBytes, kBlockBytes}));
  EXPECT_FALSE(space.take({3 * kRegion - kBlockBytes, 2 * kBlockBytes}));
  EXPECT_FALSE(space.take({kRegion, 0}));
  EXPECT_TRUE(space.take({kRegion, kBlockBytes}));
  EXPECT_EQ(space.free_bytes(), 2 * kRegion - 2 * kBlockBytes);
}

TEST(SpaceMap, AValueLongerThanARegionLiesInSeveral) {
  space_map space(kRegion);
  space.add({0, 3 * kRegion});
  const auto pieces = space.allocate(kRegion * 5 / 2);
  ASSERT_TRUE(pieces);
  EXPECT_EQ(pieces->size(), 3u);
  EXPECT_FALSE(space.allocate(kRegion));
}

TEST(Arena, SmallValuesShareBlocksAndAllComesBack) {
  auto made = arena::make(std::uint64_t{4} << 20, std::uint64_t{4} << 20, false);
  ASSERT_TRUE(made) << made.error().message;
  arena& memory = **made;
  std::mt19937 random(3);
  struct piece {
    std::vector<segment> place;
    std::byte fill;
  };
  std::vector<piece> held;
  std::uint64_t small = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 3 != 0) {
      const std::uint64_t size = random() % 4 == 0 ? random() % 10'000 : random() % 300;
      auto got = memory.allocate(size);
      if (!got) continue;
      const auto fill = static_cast<std::byte>(random());
      for (const segment& one : *got) std::memset(memory.span_of(one).data(), static_cast<int>(fill), one.size_bytes);
      held.push_back({std::move(*got), fill});
      small += size;
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      for (const segment& one : held.back().place) {
        for (const std::byte b : memory.span_of(one)) ASSERT_EQ(b, held.back().fill) << "somebody else's memory";
      }
      memory.release(held.back().place);
      held.pop_back();
    }
  }
  EXPECT_GT(small, 0u);
  for (const piece& one : held) memory.release(one.place);
  EXPECT_EQ(memory.used_bytes(), 0u);
}

TEST(Arena, MemoryBehindAValueIsZero) {
  auto made = arena::make(std::uint64_t{4} << 20, std::uint64_t{4} << 20, false);
  ASSERT_TRUE(made);
  arena& memory = **made;
  const auto old = memory.allocate(8192);
  std::memset(memory.span_of(old->front()).data(), 0xaa, 8192);
  memory.release(*old);
  const auto fresh = memory.allocate(5000);
  const std::byte* base = memory.info().base + fresh->front().offset_bytes;
  EXPECT_EQ(std::count(base + 5000, base + 8192, std::byte{0}), 8192 - 5000);
}

TEST(Arena, ManyLieSideBySideAndComeBackAsOneRange) {
  auto made = arena::make(std::uint64_t{4} << 20, std::uint64_t{1} << 20, false);
  ASSERT_TRUE(made) << made.error().message;
  arena& memory = **made;
  const std::vector<std::uint64_t> sizes = {16384, 0, 100, 5000, 2048, 4096, 2049};
  std::vector<segment> pieces(sizes.size());
  memory.allocate_many(sizes, {}, pieces);
  std::uint64_t next = pieces[0].offset_bytes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(pieces[i].size_bytes, sizes[i]);
    if (sizes[i] <= arena::kSlotBytes) continue;
    EXPECT_EQ(pieces[i].offset_bytes, next);
    next += whole_blocks(sizes[i]);
  }
  // Across the border of two chunks, in any order.
  std::vector<arena::released_piece> released;
  for (const segment& piece : pieces)
    if (piece.size_bytes != 0) released.push_back({piece, false});
  std::swap(released.front(), released.back());
  memory.release_many(released);
  EXPECT_EQ(memory.used_bytes(), 0u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(memory.allocate(std::uint64_t{1} << 20)) << "whole chunks again";
}

TEST(Arena, ManyTakeWhatIsLeftOfAFragmentedOne) {
  auto made = arena::make(std::uint64_t{4} << 20, std::uint64_t{4} << 20, false);
  ASSERT_TRUE(made) << made.error().message;
  arena& memory = **made;
  const placement for_read{false, false, true};  // nothing is reserved
  std::vector<std::vector<segment>> held;
  while (auto one = memory.allocate(kBlockBytes, for_read)) held.push_back(*std::move(one));
  for (std::size_t i = 0; i < held.size(); i += 2) memory.release(held[i]);
  const std::vector<std::uint64_t> sizes(held.size(), kBlockBytes);
  std::vector<segment> pieces(sizes.size());
  memory.allocate_many(sizes, for_read, pieces);
  const auto found = std::count_if(pieces.begin(), pieces.end(), [](const segment& one) { return one.size_bytes != 0; });
  EXPECT_EQ(static_cast<std::size_t>(found), (held.size() + 1) / 2);
  EXPECT_FALSE(memory.allocate(kBlockBytes, for_read));
  std::vector<segment> too_long(1);
  memory.allocate_many(std::vector<std::uint64_t>{2 * kBlockBytes}, for_read, too_long);
  EXPECT_EQ(too_long[0].size_bytes, 0u);
}

// Lasting values are counted when they come and go by many, too.
TEST(Arena, ManyLastingOnesKeepToTheirPart) {
  auto made = arena::make(std::uint64_t{4} << 20, std::uint64_t{4} << 20, false);
  ASSERT_TRUE(made) << made.error().message;
  arena& memory = **made;
  const std::vector<std::uint64_t> sizes(1024, kBlockBytes);
  for (int round = 0; round < 3; ++round) {
    std::vector<segment> pieces(sizes.size());
    memory.allocate_many(sizes, {false, true, true}, pieces);
    std::vector<arena::released_piece> released;
    for (const segment& piece : pieces)
      if (piece.size_bytes != 0) released.push_back({piece, true});
    EXPECT_EQ(released.size(), 1024u / 8 * 7);
    EXPECT_TRUE(memory.is_sole_copy_full(kBlockBytes));
    memory.release_many(released);
    EXPECT_EQ(memory.used_bytes(), 0u);
  }
}

// Several threads allocate values in runs and singly: no two values share memory.
TEST(Arena, ManyOfSeveralThreads) {
  auto made = arena::make(std::uint64_t{8} << 20, std::uint64_t{4} << 20, false);
  ASSERT_TRUE(made) << made.error().message;
  arena& memory = **made;
  std::vector<std::thread> users;
  std::atomic<int> wrong{0};
  for (unsigned user = 1; user <= 3; ++user)
    users.emplace_back([&, user] {
      std::mt19937 random(user);
      const auto mark = static_cast<std::byte>(user);
      for (int round = 0; round < 60; ++round) {
        std::vector<std::uint64_t> sizes;
        for (int i = 0; i < 40; ++i) sizes.push_back(random() % (random() % 2 != 0 ? 12'000 : 400));
        std::vector<segment> pieces(sizes.size());
        memory.allocate_many(sizes, {}, pieces);
        std::vector<arena::released_piece> released;
        for (const segment& piece : pieces) {
          if (piece.size_bytes == 0) continue;
          std::memset(memory.span_of(piece).data(), static_cast<int>(user), piece.size_bytes);
          released.push_back({piece, false});
        }
        for (const auto& one : released) {
          const auto bytes = memory.span_of(one.piece);
          for (std::size_t place = 0; place < bytes.size(); place += 61) wrong += bytes[place] == mark ? 0 : 1;
        }
        memory.release_many(released);
      }
    });
  for (std::thread& one : users) one.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(memory.used_bytes(), 0u);
}

value_record sample(bool large) {
  value_record made{7, large ? 100'000u : 5u, 0x12345678, 9, -5, durability::logged, large ? 3u : 0u, {}, {}};
  if (large) made.extents = {{kBlockBytes, 20 * kBlockBytes}, {100 * kBlockBytes, 5 * kBlockBytes}};
  else made.small_value = "hello";
  return made;
}

TEST(Record, ComesBackAsItWas) {
  for (const bool large : {false, true}) {
    const std::string raw = encode(sample(large));
    const auto back = decode_value(raw);
    ASSERT_TRUE(back);
    EXPECT_EQ(encode(*back), raw);
    EXPECT_EQ(back->large(), large);
    EXPECT_EQ(back->written_unix_ns, -5);
  }
}

// A record with a level that earlier releases let through is written again with the one that it stands for.
struct level_place {
  std::size_t offset = 0;
  durability today = durability::logged;
};
std::string with_level(std::string bytes, const std::optional<level_place>& level) {
  constexpr char kReplicated = 4;
  if (level && bytes[level->offset] == kReplicated) bytes[level->offset] = static_cast<char>(level->today);
  return bytes;
}

// Decoding accepts exactly what encoding makes: a changed byte is refused or comes back as that byte.
template <class Decode>
void mutate(const std::string& good, const Decode& decode, std::optional<level_place> level = {}) {
  std::mt19937 random(11);
  for (std::size_t cut = 0; cut < good.size(); ++cut) {
    if (const auto back = decode(std::string_view(good).substr(0, cut))) { EXPECT_EQ(encode(*back), good.substr(0, cut)); }
  }
  for (int step = 0; step < 20'000; ++step) {
    std::string bad = good;
    for (unsigned i = 0; i <= random() % 3; ++i) bad[random() % bad.size()] = static_cast<char>(random());
    if (random() % 8 == 0) bad.push_back(static_cast<char>(random()));
    if (const auto back = decode(bad)) { EXPECT_EQ(encode(*back), with_level(bad, level)); }
  }
}

TEST(Record, NothingElseIsARecord) {
  mutate(encode(sample(false)), decode_value, level_place{1});
  mutate(encode(sample(true)), decode_value, level_place{1});
  pool_info pool;
  pool.id = 3, pool.name = "name", pool.options.tags = "tags";
  mutate(encode(pool), decode_pool, level_place{1 + 4 + 4 + pool.name.size(), durability::durable});
  mutate(encode(pool_counts{1, 2}), decode_counts);
  mutate(encode(store_format{1, 1 << 20, 3, 4}), decode_format);
  for (const bool is_remote : {false, true})
    mutate(encode(request_outcome{5, durability::durable, 8, {{0, 6, 7}, {ENOENT, 0, 0}}, is_remote}), decode_outcome,
           level_place{1 + 8});
}

// As earlier releases have written them: applied changes in layouts 1 (without a group) and 2, catch-up results in 3.
TEST(Record, OutcomesOfEarlierReleasesCountAsApplied) {
  using namespace std::string_literals;
  const std::string sequence = "\5\0\0\0\0\0\0\0"s, level = "\3"s, group = "\x8\0"s,
                    items = "\1\0"s + "\0\0\0\0"s + "\6\0\0\0\0\0\0\0"s + "\7\0\0\0"s;
  const auto first = decode_outcome("\1"s + sequence + level + items);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->group, kAnyGroup);
  EXPECT_FALSE(first->is_remote);
  for (const bool is_remote : {false, true}) {
    const std::string raw = (is_remote ? "\3"s : "\2"s) + sequence + level + group + items;
    const auto read = decode_outcome(raw);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->is_remote, is_remote);
    EXPECT_EQ(read->sequence, 5u);
    EXPECT_EQ(read->group, 8u);
    ASSERT_EQ(read->items.size(), 1u);
    EXPECT_EQ(read->items.front().version, 6u);
    EXPECT_EQ(read->items.front().crc, 7u);
    EXPECT_EQ(encode(*read), raw);
  }
  EXPECT_FALSE(decode_outcome("\4"s + sequence + level + group + items)) << "a later release's";
}

TEST(Record, KeysOfAPoolAreNeighbours) {
  EXPECT_LT(full_key(1, "\xff\xff"), full_key(2, ""));
  EXPECT_LT(full_key(255, "z"), full_key(256, "a"));
  EXPECT_EQ(pool_of(full_key(0x12345678, "k")), 0x12345678u);
  EXPECT_EQ(shown(std::string("a\0'b", 4)), "'a\\x00\\x27b'");
}

// Values of many threads that change hands, while quotas change and somebody looks.
TEST(OwnerCounts, AddUpOverThreads) {
  owners table;
  pool_owners pool, dropped;
  pool.join(table);
  dropped.join(table);
  table.set_quotas({{"*", 4000, 0}});
  std::atomic<bool> ends{false};
  std::thread watcher([&] {
    for (std::uint64_t turn = 1; !ends; ++turn) {
      table.set_quotas({{"*", 4000 + turn % 2, 0}});
      for (const owner_info& one : table.list()) EXPECT_LT(one.keys, std::uint64_t{1} << 32) << "less than nothing";
    }
  });
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::array<owned_value, kThreads> last;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<unsigned>(thread));
      owned_value& now = last[static_cast<std::size_t>(thread)];
      for (int i = 0; i < 20'000; ++i) {
        owned_value next{random() % 4 != 0, table.need("owner " + std::to_string(random() % 3)), random() % 3000};
        if (random() % 10 == 0) next.owner = 0;
        const auto changes = owner_changes::between(now, next);
        if (!pool.charge(changes, true)) continue;
        if (random() % 5 == 0) pool.refund(changes);
        else now = next;
        next.owner = table.need("owner of what is dropped");
        (void)dropped.charge(owner_changes::between({}, next), false);
      }
    });
  for (std::thread& one : threads) one.join();
  ends = true;
  watcher.join();
  // Threads that ran one after the other may have been refused nothing.
  for (int owner = 0; owner < 3; ++owner) {
    const owned_value large{true, table.need("owner " + std::to_string(owner)), 5000};
    EXPECT_FALSE(pool.charge(owner_changes::between({}, large), true)) << owner;
  }
  dropped.take_back();
  std::map<owner_id, pool_counts> expected;
  for (const owned_value& one : last)
    if (one.exists) ++expected[one.owner].keys, expected[one.owner].bytes += one.bytes;
  const auto all = table.list();
  ASSERT_EQ(all.size(), 4u);
  for (const owner_info& one : all) {
    EXPECT_EQ(one.keys, expected[one.id].keys) << one.name;
    EXPECT_EQ(one.bytes, expected[one.id].bytes) << one.name;
    EXPECT_EQ(one.refused > 0, one.name != "owner of what is dropped") << one.name;
  }
}

}  // namespace
}  // namespace pl::store
