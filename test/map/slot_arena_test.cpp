// SPDX-License-Identifier: Apache-2.0
#include "map/slot_arena.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

namespace pl {
namespace {

struct alignas(64) slot {
  int value = 7;
  char rest[60];
};
using small_arena = slot_arena<slot, 16, 4>;

TEST(SlotArena, KnowsItsOwnAddressesOnly) {
  small_arena arena;
  slot* first = arena.take();
  ASSERT_NE(first, nullptr);
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  EXPECT_EQ(first->value, 7);
  EXPECT_TRUE(arena.owns(address));
  EXPECT_TRUE(arena.owns(address + sizeof(slot)));  // not handed out yet, but a slot
  EXPECT_FALSE(arena.owns(address + 8));
  EXPECT_FALSE(arena.owns(address + 16 * sizeof(slot)));
  EXPECT_FALSE(arena.owns(address - sizeof(slot)));
  EXPECT_FALSE(arena.owns(0));
  EXPECT_FALSE(arena.owns(UINTPTR_MAX));
}

TEST(SlotArena, QuarantinesBeforeReuse) {
  small_arena arena;
  slot* first = arena.take();
  arena.give_back(first);
  std::set<slot*> seen;
  for (int i = 0; i < 4; ++i) {
    slot* next = arena.take();
    EXPECT_NE(next, first) << "reused after " << i << " releases";
    seen.insert(next);
    arena.give_back(next);
  }
  EXPECT_EQ(seen.size(), 4u);
  EXPECT_EQ(arena.take(), first) << "five wait now: the oldest comes back";
}

TEST(SlotArena, RunsOutAndRecovers) {
  small_arena arena;
  slot* last = nullptr;
  for (int i = 0; i < 16; ++i) ASSERT_NE(last = arena.take(), nullptr);
  EXPECT_EQ(arena.take(), nullptr);
  arena.give_back(last);
  EXPECT_EQ(arena.take(), last) << "a full arena does not insist on the quarantine";
}

TEST(SlotArena, KeepsTheOrderOfFreedSlotsWhenTheRingWidensInItsMiddle) {
  slot_arena<slot, 4096, 8> arena;
  std::vector<slot*> taken;
  for (int i = 0; i < 3000; ++i) taken.push_back(arena.take());
  for (int i = 0; i < 700; ++i) arena.give_back(taken[static_cast<std::size_t>(i)]);
  for (int i = 0; i < 600; ++i)
    ASSERT_EQ(arena.take(), taken[static_cast<std::size_t>(i)]);  // the ring starts at its 600th place
  for (int i = 700; i < 3000; ++i) arena.give_back(taken[static_cast<std::size_t>(i)]);  // and is widened twice
  for (int i = 600; i < 2900; ++i) ASSERT_EQ(arena.take(), taken[static_cast<std::size_t>(i)]) << i;
}

}  // namespace
}  // namespace pl
