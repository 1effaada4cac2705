// SPDX-License-Identifier: Apache-2.0
// Channels between two hosts (test/messaging/two_hosts.hpp) on the simulated GPU: every byte while packets are delayed and
// lost, a peer that is killed, a wire that is cut, and a peer that does not put.
#include <algorithm>
#include <csignal>

#include "base/clock.hpp"
#include "test/messaging/two_hosts.hpp"
#include "test/triggered/ends.hpp"
#include "triggered/staging.hpp"

namespace pl::triggered {
namespace {

constexpr std::chrono::seconds kInTime{20};  // generous for a loaded machine

constexpr std::size_t kPacket = (32 << 10) - kHeadBytes;  // of a put in one message over TCP

class stream_hosts : public testing::Test {
 protected:
  // Why there are none, or "".
  std::string join(const messaging::wire& between) { return both_.make(between); }
  int run(const std::function<int(const rank_session&)>& body, int killed = -1) {
    context_options options;
    options.messages = messaging::test_options();
    return messaging::fork_ranks(
        2,
        [&](int rank, messaging::fork_bootstrap& sockets) {
          return both_.enter(rank) ? run_rank_session(rank, sockets, gpus::one_each, options, body, {}) : __LINE__;
        },
        killed);
  }
  messaging::two_hosts both_;
};

// What is between hosts can only be the proxy's: by messages, for there is no memory to share.
int open_between_hosts(const rank_session& session, two_ends& ends, std::chrono::nanoseconds limit = kTimeout) {
  auto options = options_for(executor_kind::proxy);
  options.wait_timeout = limit;
  if (const int line = ends.open(session, options)) return line;
  CHECK(ends.peer_channel->executor() == executor_kind::proxy);
  CHECK(ends.peer_channel->diag().find("pieces queued") != std::string::npos);
  CHECK(ends.peer_channel->diag().find("stored by a copy engine") != std::string::npos);
  return 0;
}

// The stream goes on in time, and the channel says why.
int is_released(const rank_session& session, two_ends& ends, std::initializer_list<int> codes) {
  const auto end_ns = monotonic_ns() + static_cast<std::uint64_t>(std::chrono::nanoseconds(kInTime).count());
  while (ends.peer_channel->state().error == 0 && monotonic_ns() < end_ns) sched_yield();
  const int code = ends.peer_channel->state().error;
  CHECK(std::find(codes.begin(), codes.end(), code) != codes.end());
  CHECK(cuda().cuStreamSynchronize(session.stream) == 0 && monotonic_ns() < end_ns);
  return 0;
}

TEST_F(stream_hosts, every_byte_is_right_while_packets_are_lost) {
  if (const auto reason = join({3, 100, 600, 0.005}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run([](const rank_session& session) {
              two_ends ends;
              if (const int line = open_between_hosts(session, ends)) return line;
              std::uint64_t round = 0;
              for (const std::size_t bytes :
                   {std::size_t{0}, std::size_t{1}, std::size_t{128}, std::size_t{8192}, std::size_t{8193}, kPacket,
                    kPacket + 1, 2 * kPacket, 2 * kPacket + 1, std::size_t{65537}, kBytes - 5})
                for (int i = 0; i < 3; ++i, ++round) {
                  const auto seed = [&](int rank) { return round * 2 + static_cast<unsigned>(rank); };
                  const std::size_t offset = bytes == kBytes - 5 ? 5 : 7;
                  test::set_device_bytes(ends.send_buffer.pointer(), test::random_bytes(bytes, seed(session.rank)));
                  if (session.rank == 1) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                  CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, offset,
                                                         ends.send_buffer.pointer(), bytes));
                  if (session.rank == 0) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                  CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                  CHECK(test::device_bytes(ends.receive_buffer.pointer() + offset, bytes) ==
                        test::random_bytes(bytes, seed(1 - session.rank)));
                  CHECK_OK(session.bootstrap->barrier());
                }
              CHECK(ends.peer_channel->state().error == 0 && ends.peer_channel->state().passed == round);
              CHECK_OK(session.bootstrap->barrier());
              return 0;
            }),
            0);
}

// Each channel with a depth and releases of its own; the slice of a channel holds what its last put brought.
int exchange_by_many_channels(const rank_session& session) {
  constexpr unsigned kChannels = 24;
  constexpr std::uint64_t kRounds = 20;
  constexpr std::size_t kSlice = kBytes / kChannels / 64 * 64;
  two_ends ends;
  if (const int line = open_between_hosts(session, ends)) return line;
  std::vector<std::unique_ptr<channel>> all;
  auto options = options_for(executor_kind::proxy);
  options.depth = 2;
  for (unsigned i = 0; i < kChannels; ++i) {
    auto made = session.streams->connect(1 - session.rank, 100 + i, options);
    CHECK_OK(made);
    CHECK_OK((*made)->ready(kTimeout));
    all.push_back(std::move(*made));
  }
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    // Small, cut into packets, and in between, in turns.
    const auto bytes_of = [&](unsigned i) { return (i + round) % 3 == 0 ? std::size_t{100} : kSlice - i; };
    test::set_device_bytes(ends.send_buffer.pointer(), test::random_bytes(kBytes, round * 2 + unsigned(session.rank)));
    for (unsigned i = 0; i < kChannels; ++i)
      CHECK_OK(all[i]->put_signal(session.stream, ends.peer_window, i * kSlice, ends.send_buffer.pointer() + i * kSlice,
                                  bytes_of(i)));
    for (unsigned i = 0; i < kChannels; ++i) {
      const auto number = all[i]->wait_signal(session.stream);
      CHECK_OK(number);
      CHECK_OK(all[i]->release(session.stream, *number));
    }
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    const auto sent = test::random_bytes(kBytes, round * 2 + unsigned(1 - session.rank));
    for (unsigned i = 0; i < kChannels; ++i) {
      const auto begin = sent.begin() + static_cast<std::ptrdiff_t>(i * kSlice);
      const auto received = test::device_bytes(ends.receive_buffer.pointer() + i * kSlice, bytes_of(i));
      CHECK(std::equal(received.begin(), received.end(), begin));
    }
    CHECK_OK(session.bootstrap->barrier());
  }
  for (const auto& each : all) CHECK(each->state().error == 0 && each->state().sent == kRounds);
  return 0;
}

TEST_F(stream_hosts, many_channels_share_a_wire) {
  if (const auto reason = join({7, 20, 100, 0.001}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run(exchange_by_many_channels), 0);
}

TEST_F(stream_hosts, a_killed_peer_lets_its_waiters_go) {
  if (const auto reason = join({}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run(
                [](const rank_session& session) {
                  two_ends ends;
                  if (const int line = open_between_hosts(session, ends)) return line;
                  CHECK_OK(session.bootstrap->barrier());
                  if (session.rank == 1) {
                    for (int i = 0; i < 10; ++i)  // dies in the middle of them
                      CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(),
                                                             kBytes));
                    raise(SIGKILL);
                  }
                  for (int i = 0; i < 30; ++i)
                    if (const auto wait = ends.peer_channel->wait_signal(session.stream); !wait)
                      CHECK(wait.code() == ECONNRESET);
                  return is_released(session, ends, {ECONNRESET});
                },
                1),
            0);
}

TEST_F(stream_hosts, a_cut_wire_ends_waits_after_their_time) {
  if (const auto reason = join({}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(
      run([&](const rank_session& session) {
        two_ends ends;
        if (const int line = open_between_hosts(session, ends, 500ms)) return line;
        CHECK_OK(session.bootstrap->barrier());
        if (session.rank == 0) both_.cut();
        CHECK_OK(session.bootstrap->barrier());
        CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), kBytes));
        CHECK_OK(ends.peer_channel->wait_signal(session.stream));
        if (const int line = is_released(session, ends, {ETIMEDOUT, ECONNRESET})) return line;
        CHECK_OK(session.bootstrap->barrier());
        return 0;
      }),
      0);
}

TEST_F(stream_hosts, a_peer_that_does_not_put_is_waited_for_no_longer) {
  if (const auto reason = join({5, 50, 200, 0}); !reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
  EXPECT_EQ(run([](const rank_session& session) {
              two_ends ends;
              if (const int line = open_between_hosts(session, ends, session.rank == 0 ? 200ms : 0ms)) return line;
              if (session.rank == 0) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
              if (const int line = is_released(session, ends, {session.rank == 0 ? ETIMEDOUT : EPIPE})) return line;
              CHECK_OK(session.bootstrap->barrier());
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace pl::triggered
