// SPDX-License-Identifier: Apache-2.0
// Channels between two processes, by the peer executor.
#include "triggered/channel.hpp"

#include <chrono>

#include "test/triggered/ends.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::stream {
namespace {

int ping_pong(const scene& at) {
  two_ends ends;
  if (const int line = ends.open(at)) return line;
  CHECK(ends.to->executor() == executor_kind::peer);
  std::uint64_t round = 0;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{8}, std::size_t{100}, std::size_t{4096}, kBytes}) {
    for (int i = 0; i < 5; ++i, ++round) {
      const auto mine = test::random_bytes(bytes, round * 2 + static_cast<unsigned>(at.rank));
      test::set_device_bytes(ends.out.pointer(), mine);
      if (at.rank == 1) CHECK_OK(ends.to->wait_signal(at.on));
      CHECK_OK(ends.to->put_signal(at.on, ends.there, 0, ends.out.pointer(), bytes));
      if (at.rank == 0) CHECK_OK(ends.to->wait_signal(at.on));
      CHECK(cuda().cuStreamSynchronize(at.on) == 0);
      CHECK(test::device_bytes(ends.in.pointer(), bytes) ==
            test::random_bytes(bytes, round * 2 + static_cast<unsigned>(1 - at.rank)));
      CHECK_OK(at.with->barrier());
    }
  }
  const auto now = ends.to->state();
  CHECK(now.error == 0 && now.puts == 25 && now.sent == 25 && now.waits == 25 && now.passed == 25);
  CHECK_OK(at.with->barrier());
  return 0;
}

TEST(channel, ping_pong_between_two_gpus) { EXPECT_EQ(run_streams(2, gpus::one_each, {}, ping_pong), 0); }
TEST(channel, ping_pong_on_one_gpu) { EXPECT_EQ(run_streams(2, gpus::shared, {}, ping_pong), 0); }

TEST(channel, depth_holds_puts_back_until_the_peer_has_released) {
  EXPECT_EQ(
      run_streams(2, gpus::one_each, {}, [](const scene& at) { return depth_holds_puts_back(at, executor_kind::peer); }), 0);
}

TEST(channel, what_was_put_outlives_the_peers_end) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) { return what_was_put_outlives_the_channel(at, executor_kind::peer, false); }),
            0);
}
TEST(channel, what_was_put_outlives_the_peer) {
  EXPECT_EQ(run_streams(
                2, gpus::one_each, {},
                [](const scene& at) { return what_was_put_outlives_the_channel(at, executor_kind::peer, true); }, 0),
            0);
}
TEST(channel, what_a_closed_peer_will_not_do_lets_streams_go) {
  for (const bool is_wait : {true, false})
    EXPECT_EQ(run_streams(2, gpus::one_each, {},
                          [=](const scene& at) { return what_never_comes_is_let_go(at, executor_kind::peer, is_wait); }),
              0);
}

TEST(channel, a_stuck_wait_is_let_go_after_its_time) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          channel_options options;
                          if (at.rank == 0) options.wait_timeout = 50ms;
                          if (const int line = ends.open(at, options)) return line;
                          if (at.rank == 1) CHECK_OK(ends.to->wait_signal(at.on, 9));  // its peer's error lets it go
                          CHECK_OK(at.with->barrier());
                          if (at.rank == 0) {
                            CHECK_OK(ends.to->wait_signal(at.on));
                            CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                            CHECK(ends.to->state().error == ETIMEDOUT);
                            CHECK(ends.to->wait_signal(at.on).code() == ETIMEDOUT);
                            CHECK(ends.to->diag().find("wait 1") != std::string::npos);
                          } else {
                            CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                            CHECK(ends.to->state().error == EPIPE);
                          }
                          CHECK_OK(at.with->barrier());
                          return 0;
                        }),
            0);
}

TEST(channel, cancel_lets_both_ends_go) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          if (const int line = ends.open(at)) return line;
                          CHECK_OK(ends.to->wait_signal(at.on));
                          CHECK_OK(at.with->barrier());
                          if (at.rank == 0) ends.to->cancel(ECANCELED);
                          CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          while (ends.to->state().error == 0) sched_yield();
                          CHECK(ends.to->state().error == (at.rank == 0 ? ECANCELED : EPIPE));
                          CHECK_OK(at.with->barrier());
                          return 0;
                        }),
            0);
}

TEST(channel, death_of_the_peer_lets_its_waiters_go) {
  EXPECT_EQ(run_streams(
                2, gpus::one_each, {},
                [](const scene& at) {
                  two_ends ends;
                  if (const int line = ends.open(at)) return line;
                  CHECK_OK(at.with->barrier());
                  if (at.rank == 1) raise(SIGKILL);
                  CHECK_OK(ends.to->wait_signal(at.on));
                  CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                  CHECK(ends.to->state().error == ECONNRESET);
                  return 0;
                },
                1),
            0);
}

// A wait that names a number does not count among those that name none.
TEST(channel, a_named_wait_does_not_change_what_is_next) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          if (const int line = ends.open(at)) return line;
                          for (int i = 0; i < 4; ++i) CHECK_OK(ends.to->signal(at.on));
                          CHECK_OK(ends.to->wait_signal(at.on, 3));
                          auto next = ends.to->wait_signal(at.on);
                          CHECK(next && *next == 1);
                          CHECK_OK(ends.to->wait_signal(at.on, 1));
                          next = ends.to->wait_signal(at.on);
                          CHECK(next && *next == 2);
                          CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          const auto now = ends.to->state();
                          CHECK(now.error == 0 && now.waits == 4 && now.reached == 4 && now.passed == 4);
                          CHECK_OK(at.with->barrier());
                          return 0;
                        }),
            0);
}

// Rank 0 closes while its stream has work of the channel before it. Rank 1 is let go at once, but its words are not used
// again before that work has been done: it would count in somebody else's channel.
int closes_early(const scene& at, const std::function<int(channel&)>& queue) {
  two_ends ends;
  if (const int line = ends.open(at)) return line;
  const test::device_buffer gate{4096};
  test::set_device_bytes(gate.pointer(), std::vector<unsigned char>(4096, 0));
  if (at.rank == 0) {
    CHECK_OK(mem_ops(cuda(), at.on).wait64(gate.pointer(), 1).submit());
    if (const int line = queue(*ends.to)) return line;
    CHECK_OK(at.with->barrier());  // a wait that is queued after the peer has closed is refused
    ends.to.reset();
  } else {
    CHECK_OK(ends.to->wait_signal(at.on));
    CHECK_OK(at.with->barrier());
    CHECK(cuda().cuStreamSynchronize(at.on) == 0);
    while (ends.to->state().error == 0) sched_yield();
    CHECK(ends.to->state().error == EPIPE);
    ends.to.reset();
    // Longer than the grace that words have after both ends have said that they are closed.
    for (const auto end = std::chrono::steady_clock::now() + 50ms; std::chrono::steady_clock::now() < end; sched_yield())
      CHECK(at.by->connect(0, 8).code() == ENOSPC);
  }
  CHECK_OK(at.with->barrier());
  if (at.rank == 0) test::set_device_bytes(gate.pointer(), std::vector<unsigned char>{1, 0, 0, 0, 0, 0, 0, 0});
  CHECK(cuda().cuStreamSynchronize(at.on) == 0);
  auto next = at.by->connect(1 - at.rank, 8);
  while (next.code() == ENOSPC) {
    sched_yield();
    next = at.by->connect(1 - at.rank, 8);
  }
  CHECK_OK(next);
  CHECK_OK((*next)->ready(kPatience));
  CHECK(!*(*next)->arrived(1));
  CHECK_OK(at.with->barrier());
  return 0;
}

context_options of_one_channel() {
  context_options out;
  out.channels = 1;
  return out;
}

TEST(channel, an_end_is_closed_once_its_streams_are_past_their_puts) {
  EXPECT_EQ(run_streams(2, gpus::one_each, of_one_channel(),
                        [](const scene& at) {
                          return closes_early(at, [&](channel& to) -> int {
                            CHECK_OK(to.signal(at.on));
                            return 0;
                          });
                        }),
            0);
}

TEST(channel, an_end_is_closed_once_its_streams_are_past_their_releases) {
  EXPECT_EQ(run_streams(2, gpus::one_each, of_one_channel(),
                        [](const scene& at) {
                          return closes_early(at, [&](channel& to) -> int {
                            CHECK_OK(to.release(at.on, 1));
                            return 0;
                          });
                        }),
            0);
}

TEST(channel, refuses_what_cannot_be_meant) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          channel_options options;
                          options.most_queued = 4;
                          if (const int line = ends.open(at, options)) return line;
                          auto& to = *ends.to;
                          CHECK(to.put_signal(at.on, ends.there, kBytes, ends.out.pointer(), 1).code() == ERANGE);
                          auto foreign = ends.there;
                          foreign.rank = at.rank;
                          CHECK(to.put_signal(at.on, foreign, 0, ends.out.pointer(), 1).code() == EINVAL);
                          CHECK(to.wait_signal(at.on, 0).code() == EINVAL);
                          CHECK(at.by->connect(at.rank, 1).code() == EINVAL);
                          CHECK(at.by->connect(5, 1).code() == EINVAL);
                          CHECK(at.by->expose(ends.in.pointer(), kBytes + 1).code() == EINVAL);
                          CHECK_OK(at.with->barrier());
                          // A stuck stream does not fill the driver's queue.
                          int queued = 0, code = 0;
                          while ((code = to.wait_signal(at.on).code()) == 0) ++queued;
                          CHECK(code == EAGAIN && (queued == 4 || queued == 5));  // 5 once the stream stands in the first
                          for (int i = 0; i < 4; ++i) CHECK_OK(to.signal(at.on));
                          // Behind waits that nothing ends: nothing moves until one gives up.
                          CHECK_OK(at.with->barrier());
                          if (at.rank == 0) to.cancel(ECANCELED);
                          CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          CHECK_OK(at.with->barrier());
                          return 0;
                        }),
            0);
}

}  // namespace
}  // namespace pl::stream
