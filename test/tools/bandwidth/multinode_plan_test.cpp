// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/multinode_plan.hpp"

#include <gtest/gtest.h>

#include <set>

namespace pl::bandwidth {
namespace {

constexpr int kMultinode[] = {35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 47};

rank_shape shape_of(int size, bool pairs_at_once = true) {
  rank_shape out;
  out.size = size;
  out.pairs_at_once = pairs_at_once;
  out.why_not.assign(static_cast<std::size_t>(size), std::vector<std::string>(static_cast<std::size_t>(size)));
  return out;
}

TEST(Tournament, EveryPairMeetsOnceAndNobodyPlaysTwiceInARound) {
  for (int n = 2; n <= 9; ++n) {
    std::set<std::pair<int, int>> met;
    for (const auto& round : round_robin_schedule(n)) {
      std::set<int> players;
      for (const auto& [a, b] : round) {
        EXPECT_LT(a, b);
        EXPECT_TRUE(players.insert(a).second && players.insert(b).second) << n;
        EXPECT_TRUE(met.insert({a, b}).second) << n;
      }
    }
    EXPECT_EQ(met.size(), static_cast<std::size_t>(n * (n - 1) / 2));
    EXPECT_EQ(round_robin_schedule(n).size(), static_cast<std::size_t>(n % 2 == 0 ? n - 1 : n));
  }
}

// What verification and the runner rely on.
TEST(MultinodePlan, NoTwoTransfersOfARoundShareABuffer) {
  for (const int index : kMultinode)
    for (const int size : {2, 3, 4, 5})
      for (const auto& round : plan_multinode(index, shape_of(size)).rounds) {
        std::set<std::pair<int, unsigned>> used;
        for (const auto& one : round.transfers) {
          EXPECT_TRUE(used.insert({one.source_rank, one.source_buffer}).second) << index;
          EXPECT_TRUE(used.insert({one.destination_rank, one.destination_buffer}).second) << index;
          EXPECT_LT(one.source_buffer, buffers_of_multinode(index, size));
          EXPECT_LT(one.destination_buffer, buffers_of_multinode(index, size));
          EXPECT_TRUE(one.executor_rank == one.source_rank || one.executor_rank == one.destination_rank);
          EXPECT_NE(one.source_rank, one.destination_rank);
        }
      }
}

TEST(MultinodePlan, EveryCellIsMeasuredOnce) {
  for (const int index : kMultinode) {
    const auto plan = plan_multinode(index, shape_of(4));
    std::set<std::tuple<std::size_t, std::size_t, std::size_t>> cells;
    for (const auto& round : plan.rounds) {
      std::set<std::tuple<std::size_t, std::size_t, std::size_t>> round_cells;
      for (const auto& one : round.transfers)
        for (const auto& target : one.targets) round_cells.insert({target.matrix, target.row, target.column});
      for (const auto& one : round_cells) EXPECT_TRUE(cells.insert(one).second) << index;
    }
    const bool pairs = index < 43;
    const std::size_t each = pairs ? 12 : 4;
    EXPECT_EQ(cells.size(), each * plan.matrices.size()) << index;
  }
}

TEST(MultinodePlan, TheRowsRankWorks) {
  const auto reads = plan_multinode(35, shape_of(2)), writes = plan_multinode(40, shape_of(2));
  for (const auto& round : reads.rounds) {
    const auto& one = round.transfers.at(0);
    EXPECT_EQ(one.executor_rank, static_cast<int>(one.targets[0].row));
    EXPECT_EQ(one.source_rank, static_cast<int>(one.targets[0].column));
  }
  for (const auto& round : writes.rounds) {
    const auto& one = round.transfers.at(0);
    EXPECT_EQ(one.executor_rank, static_cast<int>(one.targets[0].row));
    EXPECT_EQ(one.destination_rank, static_cast<int>(one.targets[0].column));
  }
  EXPECT_EQ(reads.kind, executor_kind::ce);
  EXPECT_EQ(writes.kind, executor_kind::sm);
}

TEST(MultinodePlan, PairsGoOneByOneWhereTheyShareLinks) {
  for (const auto& round : plan_multinode(35, shape_of(4, false)).rounds) EXPECT_EQ(round.transfers.size(), 1u);
  for (const auto& round : plan_multinode(35, shape_of(4, true)).rounds) EXPECT_EQ(round.transfers.size(), 2u);
  EXPECT_EQ(plan_multinode(35, shape_of(4, true)).rounds.size(), 6u);
}

TEST(MultinodePlan, PairsThatCannotReachEachOtherSaySo) {
  auto shape = shape_of(3);
  shape.why_not[0][2] = "no way";
  const auto plan = plan_multinode(37, shape);
  for (const auto& one : plan.matrices) {
    EXPECT_EQ(one.cells[0][2].reason, "no way");
    EXPECT_EQ(one.cells[2][0].reason, "no way") << "both directions at once need both";
    EXPECT_EQ(one.cells[1][2].reason, "");
  }
  EXPECT_EQ(plan_multinode(35, shape).matrices[0].cells[2][0].reason, "");
  EXPECT_EQ(plan_multinode(43, shape).matrices[0].cells[0][2].reason, "no way");
  EXPECT_EQ(plan_multinode(43, shape).rounds.size(), 2u);
}

TEST(MultinodePlan, TheBisectionGoesTheWayItsLabelsSay) {
  auto shape = shape_of(5);
  const auto ours = plan_multinode(47, shape);
  EXPECT_EQ(ours.matrices[0].rows[3], "3->0");
  EXPECT_EQ(ours.rounds.at(0).transfers[3].executor_rank, 3);
  EXPECT_EQ(ours.rounds.at(0).transfers[3].destination_rank, 0);
  shape.original_mistakes = true;
  const auto original = plan_multinode(47, shape);
  EXPECT_EQ(original.rounds.at(0).transfers[3].executor_rank, 0);
  EXPECT_EQ(original.rounds.at(0).transfers[3].destination_rank, 3);
}

TEST(MultinodePlan, Titles) {
  auto shape = shape_of(2);
  const auto title = [&](int index, std::size_t matrix_index = 0) {
    return plan_multinode(index, shape).matrices[matrix_index].title;
  };
  EXPECT_EQ(title(35), "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)");
  EXPECT_EQ(title(39), "memcpy SM GPU(row) <- GPU(column) bandwidth (GB/s)");
  EXPECT_EQ(title(38, 1), "memcpy CE GPU(row) <-> GPU(column) Write2 bandwidth (GB/s)");
  EXPECT_EQ(title(44), "memcpy SM All Gpus <- GPU(column) total bandwidth (GB/s)");
  shape.original_mistakes = true;
  EXPECT_EQ(title(35), "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)");
  EXPECT_EQ(title(36), "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)");
  EXPECT_EQ(title(39), "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)");
  EXPECT_EQ(title(38), "memcpy CE CPU(row) <-> GPU(column) Read1 bandwidth (GB/s)");
  EXPECT_EQ(title(42, 2), "memcpy SM CPU(row) <-> GPU(column) Total bandwidth (GB/s)");
}

TEST(MultinodePlan, MulticastIsOneAfterTheOtherThroughOneObjectOrAllAtOnceThroughOneEach) {
  EXPECT_EQ(multicast_objects_of(43, 3), 0u);
  EXPECT_EQ(multicast_objects_of(45, 3), 1u);
  EXPECT_EQ(multicast_objects_of(46, 3), 3u);
  const auto turns = plan_multinode(45, shape_of(3));
  ASSERT_EQ(turns.rounds.size(), 3u);
  EXPECT_EQ(turns.matrices[0].title, "multicast SM GPU(column) -> All Gpus total bandwidth (GB/s)");
  EXPECT_EQ(turns.matrices[0].cells.at(0).size(), 3u);
  for (int r = 0; r < 3; ++r) {
    const auto& only = turns.rounds[static_cast<std::size_t>(r)].transfers.at(0);
    EXPECT_EQ(only.executor_rank, r);
    EXPECT_EQ(only.destination_rank, kEveryRank);
    EXPECT_EQ(only.destination_buffer, 0u);
    EXPECT_EQ(only.targets.at(0).column, static_cast<std::size_t>(r));
  }
  const auto together = plan_multinode(46, shape_of(3));
  ASSERT_EQ(together.rounds.size(), 1u);
  EXPECT_EQ(together.matrices[0].title, "multicast SM All -> All Gpus total bandwidth (GB/s)");
  EXPECT_EQ(together.matrices[0].cells.size() * together.matrices[0].cells[0].size(), 1u);
  std::set<unsigned> objects;
  for (const auto& one : together.rounds[0].transfers) objects.insert(one.destination_buffer);
  EXPECT_EQ(objects.size(), 3u);
}

}  // namespace
}  // namespace pl::bandwidth
