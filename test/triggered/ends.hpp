// SPDX-License-Identifier: Apache-2.0
// One end of a channel between two processes, with its windows, and the scenarios that every executor must pass.
#pragma once

#include <gtest/gtest.h>

#include "test/triggered/stream_job.hpp"
#include "triggered/channel.hpp"

namespace pl::triggered {

inline constexpr std::size_t kBytes = 1 << 20;

// Two windows: one to receive, one to send.
struct two_ends {
  explicit two_ends(std::size_t size_bytes = kBytes)
      : bytes(size_bytes), receive_buffer{size_bytes}, send_buffer{size_bytes} {}
  const std::size_t bytes;
  test::device_buffer receive_buffer, send_buffer;
  std::unique_ptr<channel> peer_channel;
  window_key mine;
  remote_window peer_window;
  int open(const rank_session& session, const channel_options& options = {}) {
    auto exposed = session.streams->expose(receive_buffer.pointer(), bytes);
    CHECK_OK(exposed);
    mine = *exposed;
    auto keys = exchange_keys(session, mine);
    CHECK_OK(keys);
    const auto& theirs = (*keys)[static_cast<std::size_t>(1 - session.rank)];
    peer_window = {theirs.id, theirs.rank, theirs.memory.bytes, 0};  // the proxy asks for no more
    if (options.executor != executor_kind::proxy) {
      auto window = session.streams->import(theirs);
      CHECK_OK(window);
      peer_window = *window;
    }
    auto end = session.streams->connect(1 - session.rank, 7, options);
    CHECK_OK(end);
    peer_channel = std::move(end).value();
    CHECK_OK(peer_channel->ready(kTimeout));
    return 0;
  }
};

// A suite for the executors that need no CPU, each where it is at home.
struct executor_case {
  executor_kind kind;
  gpus placement;
};
class by_executor : public testing::TestWithParam<executor_case> {
 protected:
  executor_kind kind() const { return GetParam().kind; }
  int run(const std::function<int(const rank_session&)>& body, int killed = -1) const { return run_with({}, body, killed); }
  int run_with(const context_options& options, const std::function<int(const rank_session&)>& body, int killed = -1) const {
    return run_streams(2, GetParam().placement, options, body, killed);
  }
};
inline const auto kExecutorCases =
    testing::Values(executor_case{executor_kind::peer, gpus::one_each}, executor_case{executor_kind::dma, gpus::shared});
inline std::string name_of_case(const testing::TestParamInfo<executor_case>& one) { return name_of(one.param.kind); }

inline channel_options options_for(executor_kind kind) {
  channel_options out;
  out.executor = kind;
  return out;
}

inline int depth_holds_puts_back(const rank_session& session, executor_kind kind) {
  two_ends ends;
  auto options = options_for(kind);
  options.depth = 2;
  if (const int line = ends.open(session, options)) return line;
  auto& channel_end = *ends.peer_channel;
  if (session.rank == 0) {
    for (int i = 0; i < 4; ++i)
      CHECK_OK(channel_end.put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), 64));
    CHECK_OK(session.bootstrap->barrier());  // rank 1 has seen two puts, and not three
    CHECK(channel_end.state().sent == 2);
    while (channel_end.diag().find("before put 3 until the peer releases put 1") == std::string::npos) sched_yield();
    if (kind == executor_kind::proxy) CHECK(channel_end.diag().find("2 ready to be sent") != std::string::npos);
    CHECK_OK(session.bootstrap->barrier());
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    CHECK(channel_end.state().sent == 4);
    CHECK_OK(session.bootstrap->barrier());
    return 0;
  }
  CHECK_OK(channel_end.host_wait(2, kTimeout));
  CHECK(channel_end.host_wait(3, 20ms).code() == ETIMEDOUT);
  CHECK_OK(session.bootstrap->barrier());
  CHECK_OK(session.bootstrap->barrier());
  for (std::uint64_t i = 1; i <= 4; ++i) {
    CHECK_OK(channel_end.wait_signal(session.stream));
    CHECK_OK(channel_end.release(session.stream, i));
  }
  CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
  CHECK_OK(session.bootstrap->barrier());
  return 0;
}

// Rank 0 puts three times, closes, and is killed where `dies`; only then rank 1 waits for what it put.
inline int what_was_put_outlives_the_channel(const rank_session& session, executor_kind kind, bool dies) {
  two_ends ends;
  if (const int line = ends.open(session, options_for(kind))) return line;
  auto other = session.streams->connect(1 - session.rank, 8, options_for(kind));  // by which rank 1 hears of the death
  CHECK_OK(other);
  CHECK_OK((*other)->ready(kTimeout));
  constexpr std::size_t kSlice = 100;
  const auto sent = test::random_bytes(3 * kSlice, 5);
  if (session.rank == 0) {
    test::set_device_bytes(ends.send_buffer.pointer(), sent);
    for (std::size_t i = 0; i < 3; ++i)
      CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, i * kSlice,
                                             ends.send_buffer.pointer() + i * kSlice, kSlice));
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    ends.peer_channel.reset();
    CHECK_OK(session.bootstrap->barrier());  // rank 1 has heard of it
    if (dies) raise(SIGKILL);
    CHECK_OK(session.bootstrap->barrier());
    return 0;
  }
  auto& channel_end = *ends.peer_channel;
  while (channel_end.diag().find("the peer has closed its end after put 3") == std::string::npos) sched_yield();
  CHECK_OK(session.bootstrap->barrier());
  while (dies && (*other)->state().error == 0) sched_yield();
  CHECK(*channel_end.arrived(3));
  CHECK_OK(channel_end.host_wait(3, kTimeout));
  CHECK(channel_end.arrived(4).code() == EPIPE);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const auto number = channel_end.wait_signal(session.stream);
    CHECK(number && *number == i);
    CHECK_OK(channel_end.release(session.stream, i));
  }
  CHECK(channel_end.wait_signal(session.stream).code() == EPIPE);
  CHECK_OK(channel_end.wait_signal(session.stream, 2));
  CHECK(channel_end.signal(session.stream).code() == EPIPE);
  CHECK(channel_end.put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), kSlice).code() == EPIPE);
  CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
  CHECK(test::device_bytes(ends.receive_buffer.pointer(), 3 * kSlice) == sent);
  CHECK(channel_end.state().error == 0 && channel_end.state().passed == 4);
  if (!dies) CHECK_OK(session.bootstrap->barrier());
  return 0;
}

// Rank 1 has queued more than rank 0 ever completes: a wait, and a put that needs a release.
inline int what_never_comes_is_let_go(const rank_session& session, executor_kind kind, bool is_wait) {
  two_ends ends;
  auto options = options_for(kind);
  options.depth = 1;
  options.wait_timeout = 0ns;  // not what releases here
  if (const int line = ends.open(session, options)) return line;
  if (session.rank == 0) {
    CHECK_OK(ends.peer_channel->signal(session.stream));
    CHECK_OK(session.bootstrap->barrier());
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    ends.peer_channel.reset();
  } else {
    if (is_wait) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
    for (int i = 0; i < 2; ++i)
      if (is_wait) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
      else CHECK_OK(ends.peer_channel->signal(session.stream));
    CHECK_OK(session.bootstrap->barrier());
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    CHECK(ends.peer_channel->state().error == EPIPE);
    CHECK(ends.peer_channel->wait_signal(session.stream, 1).code() == EPIPE);
  }
  CHECK_OK(session.bootstrap->barrier());
  return 0;
}

}  // namespace pl::triggered
