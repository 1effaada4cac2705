// SPDX-License-Identifier: Apache-2.0
// Whole runs on the transport in memory: rows, turns of libraries, verdicts.
#include "tools/p2p/runner.hpp"

#include <gtest/gtest.h>

#include <sstream>

#include "test/tools/p2p/memory_transport.hpp"
#include "tools/common/tool.hpp"
#include "tools/p2p/loops.hpp"

namespace pl::p2p {
namespace {

struct ran {
  int code = -1;
  std::vector<std::string> lines;
  nlohmann::json file;
};

// `worlds`: one for each library.
ran run(const settings& asked, std::vector<test::memory_world*> worlds) {
  ran out;
  result_file file("p2p", {"test"});
  testing::internal::CaptureStdout();
  const auto codes = test::on_ranks<int>(worlds[0]->size, [&](int rank) {
    std::vector<contender> arms;
    for (std::size_t i = 0; i < worlds.size(); ++i)
      arms.push_back({asked.arms[i], std::make_unique<test::memory_transport>(*worlds[i], rank)});
    test::host_buffers memory;
    return run_benchmark(asked, arms, memory, "tool", rank == 0 ? &file : nullptr);
  });
  std::istringstream text(testing::internal::GetCapturedStdout());
  for (std::string line; std::getline(text, line);) out.lines.push_back(line);
  for (const int code : codes) EXPECT_EQ(code, codes[0]);  // all ranks agree
  out.code = codes[0];
  out.file = file.to_json();
  return out;
}

settings small(benchmark kind) {
  settings asked;
  asked.kind = kind;
  asked.max_bytes = 4;
  asked.iterations = 3;
  asked.warm_up = 1;
  asked.window = 2;
  return asked;
}

TEST(Runner, OneRowForEachSize) {
  test::memory_world world(2);
  const auto done = run(small(benchmark::latency), {&world});
  EXPECT_EQ(done.code, 0);
  ASSERT_EQ(done.lines.size(), 2u + 4);
  EXPECT_EQ(done.lines[2].substr(0, 10), "0         ");
  EXPECT_EQ(done.lines[5].size(), 28u);
  EXPECT_EQ(world.count(0, kPingTag), 4u * 4);
  EXPECT_EQ(done.file["rows"].size(), 4u);
  EXPECT_EQ(done.file["rows"][3]["size_bytes"], 4);
  EXPECT_EQ(done.file["rows"][3]["sample_count"], 3);
}

TEST(Runner, WrongDataEndsTheRun) {
  test::memory_world world(2);
  world.on_the_way = [](test::message& one) {
    if (one.tag == kWindowTag && one.data.size() == 2) one.data[1] ^= 1;
    return true;
  };
  auto asked = small(benchmark::bandwidth);
  asked.validate = true;
  const auto done = run(asked, {&world});
  EXPECT_EQ(done.code, 1);
  ASSERT_EQ(done.lines.size(), 2u + 2 + 1);
  EXPECT_EQ(done.lines[2].substr(28), "              Pass");
  EXPECT_EQ(done.lines[3].substr(28), "              Fail");
  EXPECT_EQ(done.lines[4], "DATA VALIDATION ERROR: tool exited with status 1 on message size 2.");
  EXPECT_EQ(done.file["passed"], false);
}

TEST(Runner, ComparedLibrariesShareTheIterationsInTurns) {
  test::memory_world one(2), other(2);
  auto asked = small(benchmark::latency);
  asked.min_bytes = 4;
  asked.iterations = 40;
  asked.arms = {arm::ours, arm::mpi};
  const auto done = run(asked, {&one, &other});
  ASSERT_EQ(done.lines.size(), 3u);
  EXPECT_EQ(done.lines[1], "# Size             ours (us)          mpi (us)          mpi/ours");
  EXPECT_EQ(one.count(0, kPingTag), 40u + 10);  // a warm-up of 1 in each of 10 turns
  EXPECT_EQ(other.count(0, kPingTag), 40u + 10);
  EXPECT_EQ(done.file["rows"][1]["via"], "mpi");
  EXPECT_EQ(done.file["rows"][0]["ratio_p50_to_ours"], 1.0);
}

TEST(Runner, BatchesAndPercentilesHaveColumns) {
  test::memory_world world(2);
  auto asked = small(benchmark::latency);
  asked.min_bytes = 4;
  asked.batches = 3;
  asked.percentiles = {50, 99};
  const auto done = run(asked, {&world});
  ASSERT_EQ(done.lines.size(), 3u);
  EXPECT_EQ(done.lines[1],
            "# Size                    us      lowest batch     highest batch               p50               p99");
  EXPECT_EQ(world.count(0, kPingTag), 3u * 4);
}

TEST(Runner, MessageRatesOfPairs) {
  test::memory_world world(4);
  auto asked = small(benchmark::multi_bandwidth);
  const auto done = run(asked, {&world});
  EXPECT_EQ(done.code, 0);
  ASSERT_EQ(done.lines.size(), 5u + 3);
  EXPECT_EQ(done.lines[5].size(), 46u);
  EXPECT_EQ(world.count(1, kWindowTag), 3u * 4 * 2);

  test::memory_world again(2);
  asked.vary_window = true;
  asked.max_bytes = 1;
  const auto varied = run(asked, {&again});
  EXPECT_EQ(again.count(0, kWindowTag), 4u * (1 + 2 + 4 + 8 + 16 + 32 + 64 + 128));
  EXPECT_EQ(varied.lines.back().size(), 7u + 8 * 12);
}

TEST(Runner, NumberOfProcesses) {
  test::memory_world world(3);
  test::host_buffers memory;
  std::vector<contender> arms;
  arms.push_back({arm::ours, std::make_unique<test::memory_transport>(world, 0)});
  EXPECT_THROW(run_benchmark(small(benchmark::bandwidth), arms, memory, "tool", nullptr), tools::tool_failure);
  auto asked = small(benchmark::multi_latency);
  asked.pairs = 2;
  EXPECT_THROW(run_benchmark(asked, arms, memory, "tool", nullptr), tools::tool_failure);
}

}  // namespace
}  // namespace pl::p2p
