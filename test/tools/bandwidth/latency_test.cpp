// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/latency.hpp"

#include <algorithm>
#include <numeric>

#include "test/tools/bandwidth/bandwidth_fixture.hpp"
#include "tools/bandwidth/list_order.hpp"

namespace pl::bandwidth::test {
namespace {

TEST(ScatteredLists, HaveEveryBlockOnceAndLongOnesNoNeighbours) {
  for (const std::uint64_t blocks : {1u, 2u, 3u, 7u, 16u, 255u, 256u, 7919u, 15838u, 65536u}) {
    std::vector<unsigned> seen(blocks);
    std::uint64_t followers = 0;
    const auto lists = scattered_lists(blocks);
    EXPECT_EQ(lists.size(), blocks < 256 ? 1u : 2u) << blocks;
    for (const auto& list : lists) {
      ASSERT_FALSE(list.empty()) << blocks;
      auto sorted = list;
      std::sort(sorted.begin(), sorted.end());
      for (std::size_t i = 0; i < list.size(); ++i) {
        ASSERT_LT(list[i], blocks);
        ++seen[list[i]];
        if (i == 0) continue;
        EXPECT_GE(sorted[i] - sorted[i - 1], lists.size()) << blocks;
        const auto step = static_cast<std::int64_t>(list[i]) - static_cast<std::int64_t>(list[i - 1]);
        followers += static_cast<std::size_t>(std::abs(step)) == lists.size();
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1u), static_cast<std::ptrdiff_t>(blocks));
    if (blocks >= 16) { EXPECT_EQ(followers, 0u) << blocks; }
  }
}

TEST(latency, the_list_is_one_cycle_through_every_line) {
  for (const std::uint32_t lines : {2u, 3u, 64u, 16384u})
    for (const bool sequential : {false, true}) {
      const auto next = chase_order(lines, 7, sequential);
      std::uint32_t index = 0;
      std::vector<bool> seen(lines);
      for (std::uint32_t i = 0; i < lines; ++i) {
        EXPECT_FALSE(seen[index]);
        seen[index] = true;
        index = next[index];
      }
      EXPECT_EQ(index, 0u);
    }
  EXPECT_NE(chase_order(64, 1, false), chase_order(64, 2, false));
}

void expect_plausible(const latency_outcome& found, std::uint64_t accesses) {
  ASSERT_EQ(found.samples_ns.size(), accesses);
  EXPECT_GT(found.mean_ns, 0);
  EXPECT_GT(std::accumulate(found.samples_ns.begin(), found.samples_ns.end(), 0.0), 0);
  for (const double one : found.samples_ns) EXPECT_GE(one, 0);
}

TEST(latency, a_kernel_chases_through_every_memory_that_it_reaches) {
  machine m;
  for (const place& list : {gpu_place(0), gpu_place(1), host_place()}) {
    chase_spec spec;
    spec.list = list;
    spec.bytes = 64 << 10;
    spec.accesses = 5000;  // more than one batch
    expect_plausible(must(run_chase(*m.gpus, m.pool, spec)), 5000);
  }
}

TEST(latency, what_cannot_be_chased_is_refused) {
  machine m;
  chase_spec spec;
  spec.list = host_place(host_kind::pageable);
  EXPECT_EQ(run_chase(*m.gpus, m.pool, spec).code(), EINVAL);
  spec.list = gpu_place(0);
  spec.bytes = 128;
  EXPECT_EQ(run_chase(*m.gpus, m.pool, spec).code(), EINVAL);
  spec.bytes = 4096;
  spec.accesses = 0;
  EXPECT_EQ(run_chase(*m.gpus, m.pool, spec).code(), EINVAL);
  spec.accesses = 1;
  spec.gpu = 9;
  EXPECT_EQ(run_chase(*m.gpus, m.pool, spec).code(), EINVAL);
  EXPECT_EQ(run_bar_load(*m.gpus, m.pool, 9, 1).code(), EINVAL);
}

TEST(latency, the_cpu_accesses_gpu_memory) {
  machine m;
  expect_plausible(must(run_bar_load(*m.gpus, m.pool, 0, 500)), 500);
  expect_plausible(must(run_bar_store(*m.gpus, m.pool, 1, 500)), 500);
  expect_plausible(must(run_bar_round_trip(*m.gpus, m.pool, 1, 500)), 500);
  expect_plausible(must(run_bar_round_trip(*m.gpus, m.pool, 1, 1)), 1);  // old values in the flag do no harm
}

TEST(latency, a_kernel_that_never_starts_is_told) {
  cu::driver_table table = pl::test::simulated_cuda();
  table.cuLaunchKernel = [](cu::function_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            cu::stream_t, void**, void**) -> cu::result_t { return 0; };
  machine m(table);
  EXPECT_EQ(run_bar_round_trip(*m.gpus, m.pool, 0, 10).code(), ETIMEDOUT);
}

}  // namespace
}  // namespace pl::bandwidth::test
