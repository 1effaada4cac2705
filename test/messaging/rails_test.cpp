// SPDX-License-Identifier: Apache-2.0
// Two rails between two hosts (two_hosts.hpp), each shaped by the kernel: the bandwidth of both, and what comes when one is
// cut in the middle.
#include <sys/eventfd.h>

#include <deque>

#include "base/clock.hpp"
#include "messaging/transport/rail_peer.hpp"
#include "test/messaging/job.hpp"
#include "test/messaging/two_hosts.hpp"

namespace pl::messaging {
namespace {

constexpr unsigned kMbit = 400;  // of a rail: the CPUs of a test machine carry several times as much
constexpr std::size_t kWindow = 16;

TEST(rail_peer, each_number_counts_once) {
  arrivals seen;
  EXPECT_TRUE(seen.accept(0));
  EXPECT_FALSE(seen.accept(0));
  EXPECT_TRUE(seen.accept(2));
  EXPECT_FALSE(seen.accept(2));
  EXPECT_EQ(seen.next(), 1u);
  EXPECT_TRUE(seen.accept(1));
  EXPECT_EQ(seen.next(), 3u);
  EXPECT_FALSE(seen.accept(1));
}

TEST(rail_peer, silence_needs_two_answers_apart) {
  silence quiet;
  EXPECT_FALSE(quiet.note_answer(1000, 500));
  EXPECT_FALSE(quiet.note_answer(1400, 500));
  quiet.end();
  EXPECT_FALSE(quiet.note_answer(1600, 500));
  EXPECT_TRUE(quiet.note_answer(2100, 500));
}

TEST(rail_peer, parts_take_the_rail_with_the_least_load_and_packets_the_first) {
  rail_peer remote(3);
  remote.rails[0].load = 2;
  remote.rails[1].load = 1;
  remote.rails[2].load = 3;
  EXPECT_EQ(remote.free_rail(), 1u);
  EXPECT_EQ(remote.first_rail(), 0u);
  remote.rails[0].is_up = remote.rails[1].is_up = false;
  EXPECT_EQ(remote.free_rail(), 2u);
  EXPECT_EQ(remote.first_rail(), 2u);
  EXPECT_FALSE(remote.has_other_rail(2));
  remote.rails[2].is_up = false;
  EXPECT_FALSE(remote.free_rail());
}

class rails : public testing::Test {
 protected:
  std::string join(unsigned mbit_per_s = kMbit) { return both_.make_rails(mbit_per_s); }
  int run(const std::string& devices, const std::function<int(const rank_context&)>& body, gpus layout = gpus::none,
          int killed = -1, const std::string& second_devices = {}) {
    auto options = test_options();
    options.rails = devices;
    return fork_ranks(
        2,
        [&](int rank, fork_bootstrap& sockets) {
          if (rank == 1 && !second_devices.empty()) options.rails = second_devices;
          return both_.enter(rank) ? run_rank(rank, sockets, layout, options, body) : __LINE__;
        },
        killed);
  }

  two_hosts both_;
};

// Messages one way, a window of them under way.
int stream(const rank_context& ctx, std::size_t bytes, std::size_t count) {
  std::vector<std::unique_ptr<piece>> buffers;
  std::deque<request> under_way;
  for (std::size_t i = 0; i < kWindow; ++i) buffers.push_back(std::make_unique<piece>(false, bytes));
  for (std::size_t i = 0; i < count; ++i) {
    if (under_way.size() == kWindow) {
      CHECK_OK(under_way.front().wait(kPatience));
      under_way.pop_front();
    }
    const auto buffer = buffers[i % kWindow]->all();
    under_way.push_back(ctx.rank == 0 ? ctx.messenger->isend(1, buffer, 1) : ctx.messenger->irecv(0, buffer, 1));
  }
  for (auto& each : under_way) CHECK_OK(each.wait(kPatience));
  return 0;
}

// Megabytes per second of such a stream, through `result`, which both processes see.
int measure(const rank_context& ctx, std::size_t bytes, double* result) {
  CHECK(stream(ctx, bytes, 2 * kWindow) == 0);
  CHECK_OK(ctx.messenger->barrier(kPatience));
  const std::size_t count = (24u << 20) / bytes;
  const auto begin = monotonic_ns();
  CHECK(stream(ctx, bytes, count) == 0);
  CHECK_OK(ctx.messenger->barrier(kPatience));
  if (ctx.rank == 0) *result = 1e3 * static_cast<double>(bytes * count) / static_cast<double>(monotonic_ns() - begin);
  return 0;
}

struct shared_results {
  shared_results()
      : values(static_cast<double*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~shared_results() { munmap(values, 4096); }
  double* values;
};

TEST_F(rails, two_carry_more_than_one) {
  if (const auto reason = join(); !reason.empty()) GTEST_SKIP() << "no two rails here: " << reason;
  constexpr std::size_t kSizes[] = {64u << 10, 256u << 10, 1u << 20, 4u << 20};
  const shared_results one, two;
  for (const bool has_two : {false, true}) {
    double* const values = has_two ? two.values : one.values;
    EXPECT_EQ(run(has_two ? "rail0,rail1" : "rail0",
                  [&](const rank_context& ctx) {
                    const std::uint64_t before[] = {two_hosts::bytes_sent_by(0), two_hosts::bytes_sent_by(1)};
                    for (std::size_t i = 0; i < std::size(kSizes); ++i) CHECK(measure(ctx, kSizes[i], &values[i]) == 0);
                    if (ctx.rank != 0) return 0;
                    const std::uint64_t all = 4 * (24u << 20);
                    CHECK(two_hosts::bytes_sent_by(0) - before[0] > all / 3);
                    CHECK(has_two ? two_hosts::bytes_sent_by(1) - before[1] > all / 3
                                  : two_hosts::bytes_sent_by(1) - before[1] < all / 100);
                    return 0;
                  }),
              0);
  }
  for (std::size_t i = 0; i < std::size(kSizes); ++i) {
    std::printf("%7zu KiB: one rail %6.1f MB/s, two %6.1f MB/s, %.2f times\n", kSizes[i] >> 10, one.values[i], two.values[i],
                two.values[i] / one.values[i]);
    EXPECT_GE(two.values[i], 1.6 * one.values[i]) << kSizes[i] << " bytes";
  }
}

}  // namespace
}  // namespace pl::messaging
