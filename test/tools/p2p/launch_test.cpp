// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/launch.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "tools/common/tool.hpp"

namespace pl::p2p {
namespace {

messaging::byte_string contribution(int rank, std::size_t bytes) {
  messaging::byte_string out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(rank));
  return out;
}

bool gathers(messaging::bootstrap& group, const std::vector<std::size_t>& lengths) {
  const auto rank = static_cast<std::size_t>(group.rank());
  const auto all = group.all_gather(contribution(group.rank(), lengths[rank]));
  if (!all || all->size() != lengths.size()) return false;
  for (std::size_t source = 0; source < lengths.size(); ++source)
    if ((*all)[source] != contribution(static_cast<int>(source), lengths[source])) return false;
  return group.barrier().ok();
}

struct forked {
  int code = -1;
  std::string errors;
};

forked run(int ranks, const std::function<int(fork_world&, int)>& body) {
  fork_world world(ranks);
  testing::internal::CaptureStderr();
  forked out;
  out.code = run_forked(world, "tool", [&](int rank) { return body(world, rank); });
  out.errors = testing::internal::GetCapturedStderr();
  return out;
}

TEST(Fork, RanksExchangeBytesOfAnyLength) {
  const auto done = run(3, [](fork_world& world, int rank) {
    const auto group = world.join(rank);
    for (int turn = 0; turn < 20; ++turn)
      if (!gathers(*group, {0, 200'000, 65'536})) return 3;
    return gathers(*group, {0, 0, 0}) ? 0 : 4;
  });
  EXPECT_EQ(done.code, 0) << done.errors;
}

TEST(Fork, AFailureIsToldInItsWordsAndTheOthersEnd) {
  const auto done = run(2, [](fork_world&, int rank) -> int {
    if (rank == 1) throw tools::tool_failure("there is no GPU 7");
    pause();  // for ever
    return 0;
  });
  EXPECT_EQ(done.code, 1);
  EXPECT_EQ(done.errors, "tool: rank 1: there is no GPU 7\n");
}

TEST(Fork, ADeadRankEndsTheRun) {
  const auto done = run(2, [](fork_world& world, int rank) -> int {
    if (rank == 0) raise(SIGKILL);
    return world.join(rank)->barrier().ok() ? 0 : 1;
  });
  EXPECT_EQ(done.code, 1);
  EXPECT_NE(done.errors.find("rank 0 was ended by signal 9"), std::string::npos) << done.errors;
}

TEST(Fork, TheHighestExitCodeCounts) {
  EXPECT_EQ(run(2, [](fork_world&, int rank) { return rank; }).code, 1);
}

}  // namespace
}  // namespace pl::p2p
