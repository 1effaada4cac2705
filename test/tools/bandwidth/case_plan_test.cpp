// SPDX-License-Identifier: Apache-2.0
// What each testcase measures: which bytes move where, who moves them, and which cell the rate lands in.
#include "tools/bandwidth/case_plan.hpp"

#include <gtest/gtest.h>

#include <set>

#include "tools/bandwidth/transfer_case.hpp"
#include "tools/bandwidth/transfer_grammar.hpp"

namespace pl::bandwidth {
namespace {

machine_shape fully_connected(int gpus) {
  const auto n = static_cast<std::size_t>(gpus);
  return {std::vector<unsigned>(n, 132), std::vector<std::vector<bool>>(n, std::vector<bool>(n, true)),
          std::vector<bool>(n, true)};
}

test_options of_64k() {
  test_options options;
  options.bytes = 65536;
  return options;
}

case_plan planned(const char* key, const machine_shape& shape, bool original = false) {
  test_options options = of_64k();
  options.original_mistakes = original;
  return plan_of(find_testcase(key)->plan, shape, options);
}

std::string flow(const cell_run& run) { return to_string(run.transfers); }

TEST(Testcases, KeysAreUniqueAndFound) {
  std::set<std::string> keys;
  for (const testcase& one : all_testcases()) {
    EXPECT_TRUE(keys.insert(one.key).second) << one.key;
    EXPECT_EQ(find_testcase(one.key), &one);
    EXPECT_EQ(find_testcase(std::to_string(one.index)), &one);
  }
  EXPECT_EQ(find_testcase("no_such_test"), nullptr);
  EXPECT_EQ(find_testcase("-1"), nullptr);
  EXPECT_EQ(find_testcase("9999"), nullptr);
  // As the original's 0.10 lists them.
  EXPECT_STREQ(find_testcase("33")->key, "device_to_device_latency_sm");
  EXPECT_STREQ(find_testcase("34")->key, "device_to_device_memcpy_read_tma");
  EXPECT_STREQ(find_testcase("37")->key, "device_to_device_bidirectional_memcpy_write_tma");
  EXPECT_STREQ(find_testcase("38")->key, "device_local_copy");
  EXPECT_STREQ(find_testcase("39")->key, "device_local_copy_sm");
  EXPECT_STREQ(find_testcase("40")->key, "device_local_read_sm");
  EXPECT_STREQ(find_testcase("41")->key, "device_local_write_sm");
  EXPECT_STREQ(find_testcase("42")->key, "device_to_device_latency_tma");
  EXPECT_STREQ(find_testcase("43")->key, "device_local_copy_tma");
  EXPECT_STREQ(find_testcase("56")->key, "multinode_bisect_write_ce");
}

// Every cell that a run fills exists, and no two runs fill the same one.
TEST(CasePlan, EveryTargetIsACellOfItsOwn) {
  for (const int gpus : {1, 2, 4})
    for (const bool original : {false, true})
      for (const testcase& one : all_testcases()) {
        if (one.group == testcase::kind::multi_node) continue;
        const auto plan = planned(one.key, fully_connected(gpus), original);
        EXPECT_EQ(plan.waived.empty(), !plan.runs.empty()) << one.key;
        std::set<std::tuple<std::size_t, std::size_t, std::size_t>> filled;
        for (const cell_run& run : plan.runs)
          for (const cell_target& target : run.targets) {
            ASSERT_LT(target.matrix, plan.matrices.size()) << one.key;
            ASSERT_LT(target.row, plan.matrices[target.matrix].rows.size()) << one.key;
            ASSERT_LT(target.column, plan.matrices[target.matrix].columns.size()) << one.key;
            ASSERT_TRUE(run.latency || target.transfer < run.transfers.size()) << one.key;
            EXPECT_TRUE(filled.insert({target.matrix, target.row, target.column}).second) << one.key;
          }
      }
}

TEST(CasePlan, HostTestsGoOneGpuAtATime) {
  const auto plan = planned("host_to_device_memcpy_ce", fully_connected(2));
  ASSERT_EQ(plan.runs.size(), 2u);
  EXPECT_EQ(flow(plan.runs[1]), "H -> [ce@G1] -> G1");
  EXPECT_EQ(flow(planned("device_to_host_memcpy_sm", fully_connected(2)).runs[0]), "G0 -> [sm@G0] -> H");
}

TEST(CasePlan, BidirectionalHostTestsMeasureBothDirectionsAndTheirTotal) {
  const auto plan = planned("host_to_device_bidirectional_memcpy_ce", fully_connected(1));
  EXPECT_EQ(flow(plan.runs[0]), "H -> [ce@G0] -> G0, G0 -> [ce@G0] -> H");
  EXPECT_TRUE(plan.runs[0].transfers[1].measured);
  EXPECT_EQ(plan.runs[0].transfers[1].bytes, 65536u);
  ASSERT_EQ(plan.matrices.size(), 3u);
  EXPECT_EQ(plan.matrices[1].part, "opposite");
  EXPECT_EQ(plan.matrices[2].part, "total");
  EXPECT_FALSE(plan.matrices[0].is_native_only);
  EXPECT_TRUE(plan.matrices[1].is_native_only && plan.matrices[2].is_native_only);
}

TEST(CasePlan, TheOriginalReportsOneCopyBesideTwiceTheBytes) {
  const auto plan = planned("device_to_host_bidirectional_memcpy_ce", fully_connected(1), true);
  EXPECT_EQ(flow(plan.runs[0]), "G0 -> [ce@G0] -> H, H -> [ce@G0] -> G0");
  EXPECT_FALSE(plan.runs[0].transfers[1].measured);
  EXPECT_EQ(plan.runs[0].transfers[1].bytes, 131072u);
  EXPECT_EQ(plan.matrices.size(), 1u);
}

TEST(CasePlan, KernelsOfBothDirectionsShareTheGpuAndTest19IsNotTest18) {
  EXPECT_EQ(flow(planned("host_to_device_bidirectional_memcpy_sm", fully_connected(1)).runs[0]),
            "H -> [sm:66@G0] -> G0, G0 -> [sm:66@G0] -> H");
  EXPECT_EQ(flow(planned("device_to_host_bidirectional_memcpy_sm", fully_connected(1)).runs[0]),
            "G0 -> [sm:66@G0] -> H, H -> [sm:66@G0] -> G0");
  const auto original = planned("device_to_host_bidirectional_memcpy_sm", fully_connected(1), true);
  EXPECT_EQ(flow(original.runs[0]),
            flow(planned("host_to_device_bidirectional_memcpy_sm", fully_connected(1), true).runs[0]));
  EXPECT_EQ(original.runs[0].targets[0].rate_kind, cell_target::rate::half_of_total);
}

TEST(CasePlan, AllGpusAndTheHostInOneRun) {
  const auto plan = planned("all_to_host_memcpy_ce", fully_connected(3));
  ASSERT_EQ(plan.runs.size(), 1u);
  EXPECT_EQ(flow(plan.runs[0]), "G0 -> [ce@G0] -> H, G1 -> [ce@G1] -> H, G2 -> [ce@G2] -> H");
  const auto both = planned("all_to_host_bidirectional_memcpy_sm", fully_connected(2));
  EXPECT_EQ(flow(both.runs[0]),
            "G0 -> [sm:66@G0] -> H, H -> [sm:66@G0] -> G0, G1 -> [sm:66@G1] -> H, H -> [sm:66@G1] -> G1");
  const auto original = planned("all_to_host_memcpy_ce", fully_connected(3), true);
  ASSERT_EQ(original.runs.size(), 3u);
  EXPECT_EQ(flow(original.runs[2]), "G2 -> [ce@G2] -> H, G0 -> [ce@G0] -> H, G1 -> [ce@G1] -> H");
  EXPECT_EQ(original.runs[2].transfers[0].bytes, 65536u);
  EXPECT_EQ(original.runs[2].transfers[1].bytes, 131072u);
}

TEST(CasePlan, PairsAndArrows) {
  const auto read = planned("device_to_device_memcpy_read_ce", fully_connected(2));
  EXPECT_EQ(flow(read.runs[0]), "G1 -> [ce@G0] -> G0");  // row 0 pulls from column 1
  EXPECT_EQ(read.matrices[0].title, "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)");
  const auto write = planned("device_to_device_memcpy_write_sm", fully_connected(2));
  EXPECT_EQ(flow(write.runs[0]), "G0 -> [sm@G0] -> G1");
  EXPECT_EQ(write.matrices[0].title, "memcpy SM GPU(row) -> GPU(column) bandwidth (GB/s)");
  EXPECT_EQ(planned("device_to_device_memcpy_read_ce", fully_connected(2), true).matrices[0].title,
            "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)");
}

TEST(CasePlan, Write1IsTheRowsUnlessTheOriginalIsAskedFor) {
  EXPECT_EQ(flow(planned("device_to_device_bidirectional_memcpy_write_ce", fully_connected(2)).runs[0]),
            "G0 -> [ce@G0] -> G1, G1 -> [ce@G1] -> G0");
  const auto original = planned("device_to_device_bidirectional_memcpy_write_ce", fully_connected(2), true);
  EXPECT_EQ(flow(original.runs[0]), "G1 -> [ce@G1] -> G0, G0 -> [ce@G0] -> G1");
  EXPECT_EQ(original.runs[0].targets[2].rate_kind, cell_target::rate::sum_of_own);
  EXPECT_EQ(original.matrices[2].title, "memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)");
}

TEST(CasePlan, FansAreDoneByTheGpuThatTheNameSays) {
  const auto shape = fully_connected(3);
  EXPECT_EQ(flow(planned("all_to_one_write_ce", shape).runs[0]), "G1 -> [ce@G1] -> G0, G2 -> [ce@G2] -> G0");
  EXPECT_EQ(flow(planned("all_to_one_read_sm", shape).runs[0]), "G0 -> [sm@G1] -> G1, G0 -> [sm@G2] -> G2");
  EXPECT_EQ(flow(planned("one_to_all_write_sm", shape).runs[0]), "G0 -> [sm:66@G0] -> G1, G0 -> [sm:66@G0] -> G2");
  EXPECT_EQ(flow(planned("one_to_all_read_sm", shape).runs[0]), "G1 -> [sm:66@G0] -> G0, G2 -> [sm:66@G0] -> G0");
}

TEST(CasePlan, TheOriginalsReadFansByKernelsWrite) {
  const auto shape = fully_connected(3);
  EXPECT_EQ(flow(planned("all_to_one_read_sm", shape, true).runs[0]), flow(planned("one_to_all_write_sm", shape).runs[0]));
  EXPECT_EQ(flow(planned("one_to_all_read_sm", shape, true).runs[0]), flow(planned("all_to_one_write_sm", shape).runs[0]));
  EXPECT_EQ(planned("all_to_one_read_sm", shape, true).matrices[0].title,
            "memcpy SM GPU(row) -> GPU(column) bandwidth (GB/s)");
  EXPECT_EQ(planned("one_to_all_read_sm", shape, true).matrices[0].title,
            "memcpy SM GPU(row) <- GPU(column) bandwidth (GB/s)");
}

TEST(CasePlan, AllPairsAtOnceShareTheMultiprocessors) {
  const auto plan = planned("all_to_all_write_sm", fully_connected(4));
  ASSERT_EQ(plan.runs.size(), 1u);
  EXPECT_EQ(plan.runs[0].transfers.size(), 12u);
  EXPECT_EQ(plan.runs[0].transfers[0].executor.width, 44u);
}

// Copy engines take a GPU's streams in turn: in each turn every GPU must be written by one other.
TEST(CasePlan, AllPairsByCopyEngineMeetAtNoGpu) {
  const auto plan = planned("all_to_all_write_ce", fully_connected(4));
  ASSERT_EQ(plan.runs[0].transfers.size(), 12u);
  for (std::size_t turn = 0; turn < 3; ++turn) {
    std::set<int> written;
    for (std::size_t gpu = 0; gpu < 4; ++gpu) written.insert(plan.runs[0].transfers[gpu * 3 + turn].destination.index);
    EXPECT_EQ(written.size(), 4u) << "turn " << turn;
  }
}

TEST(CasePlan, WithoutPeerAccessPairsAreWaivedAndStagingIsNot) {
  machine_shape alone{{132, 132}, {{true, false}, {false, true}}};
  EXPECT_NE(planned("device_to_device_memcpy_read_ce", alone).waived, "");
  EXPECT_NE(planned("device_to_device_latency_sm", alone).waived, "");
  EXPECT_EQ(planned("device_to_device_staged_ce", alone).runs.size(), 2u);
  EXPECT_NE(planned("device_to_device_staged_ce", fully_connected(1)).waived, "");
}

TEST(CasePlan, BulkCopiesAreWaivedWithTheReasonWhereNoGpuHasThem) {
  machine_shape old = fully_connected(2);
  old.bulk_copies = {false, false};
  for (const char* key : {"device_to_device_memcpy_read_tma", "device_to_device_bidirectional_memcpy_write_tma",
                          "device_to_device_latency_tma", "device_local_copy_tma"}) {
    EXPECT_NE(planned(key, old).waived.find("compute capability 9.0"), std::string::npos) << key;
    EXPECT_EQ(planned(key, fully_connected(2)).waived, "") << key;
  }
  EXPECT_EQ(planned("device_local_read_sm", old).waived, "");
}

TEST(CasePlan, BulkCopiesReadAndWriteAsTheOthersDo) {
  const auto two = fully_connected(2);
  EXPECT_EQ(flow(planned("device_to_device_memcpy_read_tma", two).runs[0]), "G1 -> [tma@G0] -> G0");
  EXPECT_EQ(flow(planned("device_to_device_memcpy_write_tma", two).runs[0]), "G0 -> [tma@G0] -> G1");
  EXPECT_EQ(flow(planned("device_local_copy_tma", two).runs[1]), "G1 -> [tma@G1] -> G1");
}

TEST(CasePlan, AChosenPairIsTheOnlyOneMeasured) {
  test_options options = of_64k();
  options.pairs = {true, {{0, 2}, {2, 0}}};
  for (const char* key : {"device_to_device_memcpy_read_ce", "device_to_device_bidirectional_memcpy_write_sm",
                          "device_to_device_latency_sm", "device_to_device_memcpy_write_tma"}) {
    const auto plan = plan_of(find_testcase(key)->plan, fully_connected(3), options);
    EXPECT_EQ(plan.runs.size(), 2u) << key;
    EXPECT_EQ(plan.matrices[0].cells[0][1].reason, kNotChosen) << key;
  }
}

TEST(PairChoice, ASampleHasTheWantedSizeAndCoversEveryEndFirst) {
  for (const int count : {2, 5, 8})
    for (std::int64_t wanted = 0; wanted <= count * (count - 1); ++wanted) {
      const auto chosen = sample_pairs(count, wanted, 7);
      if (wanted == count * (count - 1)) {
        EXPECT_FALSE(chosen.is_limited);
        continue;
      }
      EXPECT_EQ(chosen.ordered.size(), static_cast<std::size_t>(wanted));
      std::set<int> ends;
      for (const auto& [row, column] : chosen.ordered) {
        EXPECT_NE(row, column);
        ends.insert({row, column});
      }
      EXPECT_EQ(ends.size(), static_cast<std::size_t>(std::min<std::int64_t>(count, 2 * wanted))) << count << " " << wanted;
      EXPECT_EQ(chosen.ordered, sample_pairs(count, wanted, 7).ordered);
    }
  EXPECT_NE(sample_pairs(8, 5, 1).ordered, sample_pairs(8, 5, 2).ordered);
  EXPECT_FALSE(sample_pairs(8, -1, 1).is_limited);
}

// One direction only: the pair that works is measured, the other is a cell without a value and with a reason.
TEST(CasePlan, PairsThatCannotReachEachOtherSaySo) {
  machine_shape one_way{{132, 132}, {{true, true}, {false, true}}};
  const auto plan = planned("device_to_device_memcpy_write_ce", one_way);
  EXPECT_EQ(plan.runs.size(), 1u);
  EXPECT_EQ(plan.matrices[0].cells[1][0].reason, "no peer access between GPU 1 and GPU 0");
}

TEST(CasePlan, TheBudgetOfMultiprocessorsIsShared) {
  test_options options = of_64k();
  options.sm_count = 16;
  EXPECT_EQ(flow(plan_of(16, fully_connected(1), options).runs[0]), "H -> [sm:16@G0] -> G0");
  EXPECT_EQ(flow(plan_of(18, fully_connected(1), options).runs[0]), "H -> [sm:8@G0] -> G0, G0 -> [sm:8@G0] -> H");
  options.sm_count = 1;
  EXPECT_EQ(plan_of(18, fully_connected(1), options).runs[0].transfers[0].executor.width, 1u);
}

TEST(CasePlan, KernelsOfBothDirectionsShareTheWholeGpuWhereTheyCan) {
  test_options options = of_64k();
  machine_shape real = fully_connected(2);
  real.kernels_share = true;
  for (const int index : {18, 19, 25, 27}) {
    const auto plan = plan_of(index, real, options);
    for (const auto& one : plan.runs[0].transfers) EXPECT_EQ(one.executor.width, 0u) << index;
  }
  EXPECT_EQ(flow(plan_of(18, fully_connected(1), options).runs[0]), "H -> [sm:66@G0] -> G0, G0 -> [sm:66@G0] -> H");
  options.sm_count = 16;  // a budget is for both
  EXPECT_EQ(flow(plan_of(18, real, options).runs[0]), "H -> [sm:8@G0] -> G0, G0 -> [sm:8@G0] -> H");
}

TEST(CasePlan, BarReadsStayShort) {
  test_options options;
  EXPECT_EQ(plan_of(find_testcase("device_to_host_bar")->plan, fully_connected(1), options).runs[0].transfers[0].bytes,
            4u << 20);
}

TEST(CasePlan, TransfersAreRowsWithATotal) {
  const auto transfers = *parse_transfers("H -> G0, G0 -> [sm:4] -> H", 4096, 1);
  const auto plan = plan_transfers(transfers);
  ASSERT_EQ(plan.runs.size(), 1u);
  EXPECT_EQ(plan.matrices[0].rows[1], "2: G0 -> [sm:4@G0] -> H");
  EXPECT_EQ(plan.matrices[1].part, "total");
  EXPECT_EQ(plan_transfers({transfers[0]}).matrices.size(), 1u);
}

}  // namespace
}  // namespace pl::bandwidth
