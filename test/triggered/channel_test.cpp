// SPDX-License-Identifier: Apache-2.0
// Channels between two processes, by the executors that need no CPU.
#include "triggered/channel.hpp"

#include <chrono>

#include "test/triggered/ends.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::triggered {
namespace {

int ping_pong(const rank_session& session, executor_kind asked, executor_kind expected) {
  two_ends ends;
  if (const int line = ends.open(session, options_for(asked))) return line;
  CHECK(ends.peer_channel->executor() == expected);
  std::uint64_t round = 0;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{8}, std::size_t{100}, std::size_t{4096}, kBytes}) {
    for (int i = 0; i < 5; ++i, ++round) {
      const auto mine = test::random_bytes(bytes, round * 2 + static_cast<unsigned>(session.rank));
      test::set_device_bytes(ends.send_buffer.pointer(), mine);
      if (session.rank == 1) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
      CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), bytes));
      if (session.rank == 0) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
      CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
      CHECK(test::device_bytes(ends.receive_buffer.pointer(), bytes) ==
            test::random_bytes(bytes, round * 2 + static_cast<unsigned>(1 - session.rank)));
      CHECK_OK(session.bootstrap->barrier());
    }
  }
  const auto now = ends.peer_channel->state();
  CHECK(now.error == 0 && now.puts == 25 && now.sent == 25 && now.waits == 25 && now.passed == 25);
  CHECK_OK(session.bootstrap->barrier());
  return 0;
}

using channels = by_executor;
INSTANTIATE_TEST_SUITE_P(executors, channels, kExecutorCases, name_of_case);

TEST_P(channels, ping_pong) {
  EXPECT_EQ(run([kind = kind()](const rank_session& session) { return ping_pong(session, kind, kind); }), 0);
}
TEST(automatic_channel, between_two_gpus_goes_by_peer_access) {
  const auto body = [](const rank_session& session) {
    return ping_pong(session, executor_kind::automatic, executor_kind::peer);
  };
  for (const auto placement : {gpus::one_each, gpus::shared}) EXPECT_EQ(run_streams(2, placement, {}, body), 0);
}

TEST_P(channels, depth_holds_puts_back_until_the_peer_has_released) {
  EXPECT_EQ(run([kind = kind()](const rank_session& session) { return depth_holds_puts_back(session, kind); }), 0);
}

TEST_P(channels, what_was_put_outlives_the_peers_end) {
  EXPECT_EQ(
      run([kind = kind()](const rank_session& session) { return what_was_put_outlives_the_channel(session, kind, false); }),
      0);
}
TEST_P(channels, what_was_put_outlives_the_peer) {
  EXPECT_EQ(
      run([kind = kind()](const rank_session& session) { return what_was_put_outlives_the_channel(session, kind, true); },
          0),
      0);
}
TEST_P(channels, a_closed_peer_releases_waiting_streams) {
  for (const bool is_wait : {true, false})
    EXPECT_EQ(run([is_wait, kind = kind()](const rank_session& session) {
                return what_never_comes_is_let_go(session, kind, is_wait);
              }),
              0);
}

TEST_P(channels, a_stuck_wait_is_released_after_its_timeout) {
  EXPECT_EQ(run([kind = kind()](const rank_session& session) {
              two_ends ends;
              auto options = options_for(kind);
              if (session.rank == 0) options.wait_timeout = 50ms;
              if (const int line = ends.open(session, options)) return line;
              if (session.rank == 1)
                CHECK_OK(ends.peer_channel->wait_signal(session.stream, 9));  // its peer's error releases it
              CHECK_OK(session.bootstrap->barrier());
              if (session.rank == 0) {
                CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                CHECK(ends.peer_channel->state().error == ETIMEDOUT);
                CHECK(ends.peer_channel->wait_signal(session.stream).code() == ETIMEDOUT);
                CHECK(ends.peer_channel->diag().find("wait 1") != std::string::npos);
              } else {
                CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                CHECK(ends.peer_channel->state().error == EPIPE);
              }
              CHECK_OK(session.bootstrap->barrier());
              return 0;
            }),
            0);
}

TEST_P(channels, cancel_lets_both_ends_go) {
  EXPECT_EQ(run([kind = kind()](const rank_session& session) {
              two_ends ends;
              if (const int line = ends.open(session, options_for(kind))) return line;
              CHECK_OK(ends.peer_channel->wait_signal(session.stream));
              CHECK_OK(session.bootstrap->barrier());
              if (session.rank == 0) ends.peer_channel->cancel(ECANCELED);
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
              while (ends.peer_channel->state().error == 0) sched_yield();
              CHECK(ends.peer_channel->state().error == (session.rank == 0 ? ECANCELED : EPIPE));
              CHECK_OK(session.bootstrap->barrier());
              return 0;
            }),
            0);
}

TEST_P(channels, death_of_the_peer_releases_its_waiters) {
  EXPECT_EQ(run(
                [kind = kind()](const rank_session& session) {
                  two_ends ends;
                  if (const int line = ends.open(session, options_for(kind))) return line;
                  CHECK_OK(session.bootstrap->barrier());
                  if (session.rank == 1) raise(SIGKILL);
                  CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                  CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                  CHECK(ends.peer_channel->state().error == ECONNRESET);
                  return 0;
                },
                1),
            0);
}

// A wait with a number does not change the sequence of waits without one.
TEST_P(channels, a_named_wait_does_not_change_what_is_next) {
  EXPECT_EQ(run([kind = kind()](const rank_session& session) {
              two_ends ends;
              if (const int line = ends.open(session, options_for(kind))) return line;
              for (int i = 0; i < 4; ++i) CHECK_OK(ends.peer_channel->signal(session.stream));
              CHECK_OK(ends.peer_channel->wait_signal(session.stream, 3));
              auto next = ends.peer_channel->wait_signal(session.stream);
              CHECK(next && *next == 1);
              CHECK_OK(ends.peer_channel->wait_signal(session.stream, 1));
              next = ends.peer_channel->wait_signal(session.stream);
              CHECK(next && *next == 2);
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
              const auto now = ends.peer_channel->state();
              CHECK(now.error == 0 && now.waits == 4 && now.reached == 4 && now.passed == 4);
              CHECK_OK(session.bootstrap->barrier());
              return 0;
            }),
            0);
}

// Rank 0 closes while its stream has pending work of the channel. Rank 1 is released at once, but its words are not reused
// before that work has completed: it would count in another channel.
int closes_early(const rank_session& session, executor_kind kind, const std::function<int(channel&)>& queue) {
  two_ends ends;
  if (const int line = ends.open(session, options_for(kind))) return line;
  const test::device_buffer gate{4096};
  test::set_device_bytes(gate.pointer(), std::vector<unsigned char>(4096, 0));
  if (session.rank == 0) {
    CHECK_OK(mem_ops(cuda(), session.stream).wait64(gate.pointer(), 1).submit());
    if (const int line = queue(*ends.peer_channel)) return line;
    CHECK_OK(session.bootstrap->barrier());  // a wait that is queued after the peer has closed is refused
    ends.peer_channel.reset();
  } else {
    CHECK_OK(ends.peer_channel->wait_signal(session.stream));
    CHECK_OK(session.bootstrap->barrier());
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    while (ends.peer_channel->state().error == 0) sched_yield();
    CHECK(ends.peer_channel->state().error == EPIPE);
    ends.peer_channel.reset();
    // Longer than the time that words are kept after both ends have closed.
    for (const auto end = std::chrono::steady_clock::now() + 50ms; std::chrono::steady_clock::now() < end; sched_yield())
      CHECK(session.streams->connect(0, 8).code() == ENOSPC);
  }
  CHECK_OK(session.bootstrap->barrier());
  if (session.rank == 0) test::set_device_bytes(gate.pointer(), std::vector<unsigned char>{1, 0, 0, 0, 0, 0, 0, 0});
  CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
  auto next = session.streams->connect(1 - session.rank, 8);
  while (next.code() == ENOSPC) {
    sched_yield();
    next = session.streams->connect(1 - session.rank, 8);
  }
  CHECK_OK(next);
  CHECK_OK((*next)->ready(kTimeout));
  CHECK(!*(*next)->arrived(1));
  CHECK_OK(session.bootstrap->barrier());
  return 0;
}

context_options of_one_channel() {
  context_options out;
  out.channels = 1;
  return out;
}

TEST_P(channels, an_end_is_closed_once_its_streams_are_past_their_puts) {
  EXPECT_EQ(run_with(of_one_channel(),
                     [kind = kind()](const rank_session& session) {
                       return closes_early(session, kind, [&](channel& channel_end) -> int {
                         CHECK_OK(channel_end.signal(session.stream));
                         return 0;
                       });
                     }),
            0);
}

TEST_P(channels, an_end_is_closed_once_its_streams_are_past_their_releases) {
  EXPECT_EQ(run_with(of_one_channel(),
                     [kind = kind()](const rank_session& session) {
                       return closes_early(session, kind, [&](channel& channel_end) -> int {
                         CHECK_OK(channel_end.release(session.stream, 1));
                         return 0;
                       });
                     }),
            0);
}

TEST_P(channels, refuses_what_cannot_be_meant) {
  EXPECT_EQ(run([kind = kind()](const rank_session& session) {
              two_ends ends;
              auto options = options_for(kind);
              options.most_queued = 4;
              if (const int line = ends.open(session, options)) return line;
              auto& channel_end = *ends.peer_channel;
              CHECK(channel_end.put_signal(session.stream, ends.peer_window, kBytes, ends.send_buffer.pointer(), 1).code() ==
                    ERANGE);
              auto foreign = ends.peer_window;
              foreign.rank = session.rank;
              CHECK(channel_end.put_signal(session.stream, foreign, 0, ends.send_buffer.pointer(), 1).code() == EINVAL);
              CHECK(channel_end.wait_signal(session.stream, 0).code() == EINVAL);
              CHECK(session.streams->connect(session.rank, 1).code() == EINVAL);
              CHECK(session.streams->connect(5, 1).code() == EINVAL);
              CHECK(session.streams->expose(ends.receive_buffer.pointer(), kBytes + 1).code() == EINVAL);
              CHECK_OK(session.bootstrap->barrier());
              // A stuck stream does not fill the driver's queue.
              int queued = 0, code = 0;
              while ((code = channel_end.wait_signal(session.stream).code()) == 0) ++queued;
              CHECK(code == EAGAIN && (queued == 4 || queued == 5));  // 5 once the stream stands in the first
              for (int i = 0; i < 4; ++i) CHECK_OK(channel_end.signal(session.stream));
              // After waits that nothing ends: nothing moves until one times out.
              CHECK_OK(session.bootstrap->barrier());
              if (session.rank == 0) channel_end.cancel(ECANCELED);
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
              CHECK_OK(session.bootstrap->barrier());
              return 0;
            }),
            0);
}

int g_refused_uuids = 0;
cu::result_t refuse_uuids(cu::uuid_t* uuid, cu::device_t device) {
  return g_refused_uuids-- > 0 ? cu::error_code::unknown : cuda().cuDeviceGetUuid_v2(uuid, device);
}

TEST(channel_ends, what_could_not_be_made_takes_no_place_and_does_not_count) {
  EXPECT_EQ(run_streams(
                2, gpus::one_each, of_one_channel(),
                [](const rank_session& session) -> int {
                  g_refused_uuids = session.rank == 0 ? 3 : 0;
                  for (int i = 0; i < 3 && session.rank == 0; ++i)
                    CHECK(session.streams->connect(1, 8).code() != 0 && g_refused_uuids == 2 - i);
                  auto channel_end = session.streams->connect(1 - session.rank, 8);
                  CHECK_OK(channel_end);
                  CHECK_OK((*channel_end)->ready(kTimeout));
                  CHECK_OK(session.bootstrap->barrier());
                  return 0;
                },
                -1, [](cu::driver_table& table) { table.cuDeviceGetUuid_v2 = refuse_uuids; }),
            0);
}

}  // namespace
}  // namespace pl::triggered
