// SPDX-License-Identifier: Apache-2.0
// Two rails between two hosts (two_hosts.hpp), each shaped by the kernel: the bandwidth of both, and what comes when one is
// cut in the middle.
#include <sys/mman.h>

#include <deque>

#include "base/clock.hpp"
#include "base/text.hpp"
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
          int killed = -1) {
    options_.rails = devices;
    return run_job(2, layout, options_, body, killed, [&](int rank) { return both_.enter(rank); });
  }

  messenger_options options_ = test_options();
  two_hosts both_;
};

// Messages one way, a window of them under way.
int stream(const rank_context& ctx, std::size_t bytes, std::size_t count) {
  std::vector<std::unique_ptr<piece>> buffers;
  std::deque<request> in_flight;
  for (std::size_t i = 0; i < kWindow; ++i) buffers.push_back(std::make_unique<piece>(false, bytes));
  for (std::size_t i = 0; i < count; ++i) {
    if (in_flight.size() == kWindow) {
      CHECK_OK(in_flight.front().wait(kTimeout));
      in_flight.pop_front();
    }
    const auto buffer = buffers[i % kWindow]->all();
    in_flight.push_back(ctx.rank == 0 ? ctx.messenger->isend(1, buffer, 1) : ctx.messenger->irecv(0, buffer, 1));
  }
  for (auto& each : in_flight) CHECK_OK(each.wait(kTimeout));
  return 0;
}

// Megabytes per second of such a stream, through `result`, which both processes see.
int measure(const rank_context& ctx, std::size_t bytes, double* result) {
  CHECK(stream(ctx, bytes, 2 * kWindow) == 0);
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  const std::size_t count = std::max<std::size_t>((24u << 20) / bytes, kWindow);
  const auto begin = monotonic_ns();
  CHECK(stream(ctx, bytes, count) == 0);
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  if (ctx.rank == 0) *result = 1e3 * static_cast<double>(bytes * count) / static_cast<double>(monotonic_ns() - begin);
  return 0;
}

struct shared_results {
  shared_results()
      : values(static_cast<double*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~shared_results() { munmap(values, 4096); }
  double* values;
};

TEST_F(rails, both_carry_large_messages) {
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
  // How fast depends on who else has the machine's CPUs (docs/results/p2p/rails): it is printed, not demanded.
  for (std::size_t i = 0; i < std::size(kSizes); ++i)
    std::printf("%7zu KiB: one rail %6.1f MB/s, two %6.1f MB/s, %.2f times\n", kSizes[i] >> 10, one.values[i], two.values[i],
                two.values[i] / one.values[i]);
}

// ---- A rail is cut while messages are under way in both directions

constexpr int kPairs = 60, kCutAt = 20, kInFlight = 6;

std::size_t pair_bytes(int message) {
  constexpr std::size_t kSizes[] = {8, 3000, 20'000, 64u << 10, (256u << 10) + 1, 1u << 20};
  return kSizes[static_cast<std::size_t>(message) % std::size(kSizes)];
}

std::vector<unsigned char> pair_data(int source, int message) {
  return test::random_bytes(pair_bytes(message), static_cast<std::uint64_t>(1000 * source + message));
}

// One message each way, and an addition to a word of the peer.
struct both_ways {
  both_ways(const rank_context& ctx, const window::key_t& key, int message)
      : number(message), outgoing(message % 2 == 0, pair_bytes(message)), incoming(message % 3 == 0, pair_bytes(message)) {
    const int peer = 1 - ctx.rank;
    outgoing.set(pair_data(ctx.rank, message));
    received = ctx.messenger->irecv(peer, incoming.all(), static_cast<std::uint64_t>(message));
    sent = ctx.messenger->isend(peer, outgoing.all(), static_cast<std::uint64_t>(message));
    added = ctx.messenger->atomic(key, 0, atomic_op::add, 1);
  }
  int check(const rank_context& ctx) {
    CHECK_OK(received.wait(kTimeout));
    CHECK(received.info().bytes == pair_bytes(number));
    CHECK(incoming.get(pair_bytes(number)) == pair_data(1 - ctx.rank, number));
    CHECK_OK(sent.wait(kTimeout));
    CHECK_OK(added.wait(kTimeout));
    return 0;
  }
  int number;
  piece outgoing, incoming;
  request sent, received, added;
};

// Whatever comes twice would be a message more, or an addition more.
int expect_nothing_more(const rank_context& ctx, const std::uint64_t& sum) {
  piece any(false, 1u << 20);
  auto more = ctx.messenger->irecv(kAnySource, any.all(), 0, 0);
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  CHECK(more.wait(300ms).code() == ETIMEDOUT);
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  CHECK(__atomic_load_n(&sum, __ATOMIC_SEQ_CST) == kPairs);
  CHECK(ctx.messenger->counts().unexpected_bytes == 0);
  return 0;
}

int talk_through(const rank_context& ctx, int rail, const std::function<bool()>& cut) {
  alignas(8) std::uint64_t sum = 0;
  auto window_here = ctx.messenger->expose({reinterpret_cast<std::uint64_t>(&sum), sizeof sum});
  CHECK_OK(window_here);
  auto key = window_here->key();  // windows are numbered alike in both processes
  key.rank = 1 - ctx.rank;
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  std::deque<both_ways> in_flight;
  std::uint64_t by_other = 0;
  for (int i = 0; i < kPairs; ++i) {
    in_flight.emplace_back(ctx, key, i);
    if (i == kCutAt) {
      by_other = two_hosts::bytes_sent_by(1 - rail);
      CHECK(ctx.rank != 0 || cut());
    }
    if (in_flight.size() < kInFlight) continue;
    CHECK(in_flight.front().check(ctx) == 0);
    in_flight.pop_front();
  }
  for (auto& each : in_flight) CHECK(each.check(ctx) == 0);
  std::uint64_t rest = 0;
  for (int i = kCutAt; i < kPairs; ++i) rest += pair_bytes(i);
  CHECK(two_hosts::bytes_sent_by(1 - rail) - by_other > rest / 2);
  CHECK(ctx.messenger->plan(1 - ctx.rank).find(format("rail%d (down)", rail)) != std::string::npos);
  CHECK(expect_nothing_more(ctx, sum) == 0);
  return 0;
}

struct cut_case {
  const char* name;
  int rail;
  bool is_silent;
  bool progress_thread;
};

class cut_rails : public rails, public testing::WithParamInterface<cut_case> {};
INSTANTIATE_TEST_SUITE_P(, cut_rails,
                         testing::Values(cut_case{"the_first", 0, false, false}, cut_case{"the_second", 1, false, false},
                                         cut_case{"the_first_in_silence", 0, true, false},
                                         cut_case{"the_second_in_silence", 1, true, false},
                                         cut_case{"the_first_while_both_sleep", 0, false, true},
                                         cut_case{"the_second_in_silence_while_both_sleep", 1, true, true}),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(cut_rails, lose_no_message) {
  if (const auto reason = join(); !reason.empty()) GTEST_SKIP() << "no two rails here: " << reason;
  const auto& wanted = GetParam();
  options_.progress_thread = wanted.progress_thread;
  EXPECT_EQ(run(
                "rail0,rail1",
                [&](const rank_context& ctx) {
                  return talk_through(ctx, wanted.rail, [&] {
                    return wanted.is_silent ? two_hosts::silence_rail(wanted.rail) : two_hosts::cut_rail(wanted.rail);
                  });
                },
                gpus::one_each),
            0);
}

// ---- Errors

int outlive_peer(const rank_context& ctx) {
  piece data(false, 1u << 20);
  if (ctx.rank == 1) {
    CHECK_OK(ctx.messenger->recv(0, data.all(), 1));
    raise(SIGKILL);
  }
  std::deque<request> sends;
  for (int i = 0; i < 8; ++i) sends.push_back(ctx.messenger->isend(1, data.all(), 1));
  CHECK_OK(sends.front().wait(kTimeout));
  CHECK(sends.back().wait(kTimeout).code() == ECONNRESET);
  auto received = ctx.messenger->irecv(1, data.all(), 2);
  CHECK(received.wait(kTimeout).code() == ECONNRESET);
  sends.clear();
  CHECK(ctx.messenger->peer_state(1).code() == ECONNRESET);
  return 0;
}

TEST_F(rails, see_a_death_by_all_of_them) {
  if (const auto reason = join(); !reason.empty()) GTEST_SKIP() << "no two rails here: " << reason;
  EXPECT_EQ(run("rail0,rail1", outlive_peer, gpus::none, 1), 0);
}

// A process that makes no calls for longer than any patience with a rail loses none.
TEST_F(rails, wait_for_a_process_that_is_busy) {
  if (const auto reason = join(); !reason.empty()) GTEST_SKIP() << "no two rails here: " << reason;
  EXPECT_EQ(run("rail0,rail1",
                [](const rank_context& ctx) {
                  CHECK_OK(ctx.messenger->barrier(kTimeout));
                  if (ctx.rank == 1) usleep(3'000'000);
                  CHECK(stream(ctx, 256u << 10, 64) == 0);
                  CHECK_OK(ctx.messenger->barrier(kTimeout));
                  CHECK(ctx.messenger->plan(1 - ctx.rank).find("(down)") == std::string::npos);
                  return 0;
                }),
            0);
}

TEST_F(rails, must_be_as_many_at_both_ends) {
  if (const auto reason = join(); !reason.empty()) GTEST_SKIP() << "no two rails here: " << reason;
  EXPECT_EQ(fork_ranks(2,
                       [&](int rank, fork_bootstrap& sockets) {
                         CHECK(both_.enter(rank));
                         auto options = test_options();
                         options.rails = rank == 0 ? "rail0,rail1" : "rail0";
                         auto group = sockets.take(rank);
                         const auto opened = messenger::open(nullptr, *group, options);
                         CHECK(!opened && opened.code() == EINVAL);
                         CHECK(opened.error().message.find("PEERLANE_LINK_RAILS") != std::string::npos);
                         return 0;
                       }),
            0);
}

}  // namespace
}  // namespace pl::messaging
