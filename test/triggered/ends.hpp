// SPDX-License-Identifier: Apache-2.0
// One end of a channel between two processes, with its windows, and what is played by every executor.
#pragma once

#include "test/triggered/stream_job.hpp"
#include "triggered/channel.hpp"

namespace pl::stream {

inline constexpr std::size_t kBytes = 1 << 20;

// Two windows: what came, and what goes.
struct two_ends {
  explicit two_ends(std::size_t size_bytes = kBytes) : bytes(size_bytes), in{size_bytes}, out{size_bytes} {}
  const std::size_t bytes;
  test::device_buffer in, out;
  std::unique_ptr<channel> to;
  window_key mine;
  remote_window there;
  int open(const scene& at, const channel_options& options = {}) {
    auto exposed = at.by->expose(in.pointer(), bytes);
    CHECK_OK(exposed);
    mine = *exposed;
    auto keys = exchange_keys(at, mine);
    CHECK_OK(keys);
    const auto& theirs = (*keys)[static_cast<std::size_t>(1 - at.rank)];
    there = {theirs.id, theirs.rank, theirs.memory.bytes, 0};  // the proxy asks for no more
    if (options.executor != executor_kind::proxy) {
      auto window = at.by->import(theirs);
      CHECK_OK(window);
      there = *window;
    }
    auto end = at.by->connect(1 - at.rank, 7, options);
    CHECK_OK(end);
    to = std::move(end).value();
    CHECK_OK(to->ready(kPatience));
    return 0;
  }
};

inline channel_options by(executor_kind kind) {
  channel_options out;
  out.executor = kind;
  return out;
}

inline int depth_holds_puts_back(const scene& at, executor_kind kind) {
  two_ends ends;
  auto options = by(kind);
  options.depth = 2;
  if (const int line = ends.open(at, options)) return line;
  auto& to = *ends.to;
  if (at.rank == 0) {
    for (int i = 0; i < 4; ++i) CHECK_OK(to.put_signal(at.on, ends.there, 0, ends.out.pointer(), 64));
    CHECK_OK(at.with->barrier());  // rank 1 has seen two puts, and not three
    CHECK(to.state().sent == 2);
    while (to.diag().find("before put 3 until the peer releases put 1") == std::string::npos) sched_yield();
    if (kind == executor_kind::proxy) CHECK(to.diag().find("2 ready to be sent") != std::string::npos);
    CHECK_OK(at.with->barrier());
    CHECK(cuda().cuStreamSynchronize(at.on) == 0);
    CHECK(to.state().sent == 4);
    CHECK_OK(at.with->barrier());
    return 0;
  }
  CHECK_OK(to.host_wait(2, kPatience));
  CHECK(to.host_wait(3, 20ms).code() == ETIMEDOUT);
  CHECK_OK(at.with->barrier());
  CHECK_OK(at.with->barrier());
  for (std::uint64_t i = 1; i <= 4; ++i) {
    CHECK_OK(to.wait_signal(at.on));
    CHECK_OK(to.release(at.on, i));
  }
  CHECK(cuda().cuStreamSynchronize(at.on) == 0);
  CHECK_OK(at.with->barrier());
  return 0;
}

// Rank 0 puts three times, closes, and is killed where `dies`; only then rank 1 waits for what it put.
inline int what_was_put_outlives_the_channel(const scene& at, executor_kind kind, bool dies) {
  two_ends ends;
  if (const int line = ends.open(at, by(kind))) return line;
  auto other = at.by->connect(1 - at.rank, 8, by(kind));  // by which rank 1 hears of the death
  CHECK_OK(other);
  CHECK_OK((*other)->ready(kPatience));
  constexpr std::size_t kSlice = 100;
  const auto sent = test::random_bytes(3 * kSlice, 5);
  if (at.rank == 0) {
    test::set_device_bytes(ends.out.pointer(), sent);
    for (std::size_t i = 0; i < 3; ++i)
      CHECK_OK(ends.to->put_signal(at.on, ends.there, i * kSlice, ends.out.pointer() + i * kSlice, kSlice));
    CHECK(cuda().cuStreamSynchronize(at.on) == 0);
    ends.to.reset();
    CHECK_OK(at.with->barrier());  // rank 1 has heard of it
    if (dies) raise(SIGKILL);
    CHECK_OK(at.with->barrier());
    return 0;
  }
  auto& to = *ends.to;
  while (to.diag().find("the peer has closed its end after put 3") == std::string::npos) sched_yield();
  CHECK_OK(at.with->barrier());
  while (dies && (*other)->state().error == 0) sched_yield();
  CHECK(*to.arrived(3));
  CHECK_OK(to.host_wait(3, kPatience));
  CHECK(to.arrived(4).code() == EPIPE);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const auto number = to.wait_signal(at.on);
    CHECK(number && *number == i);
    CHECK_OK(to.release(at.on, i));
  }
  CHECK(to.wait_signal(at.on).code() == EPIPE);
  CHECK_OK(to.wait_signal(at.on, 2));
  CHECK(to.signal(at.on).code() == EPIPE);
  CHECK(to.put_signal(at.on, ends.there, 0, ends.out.pointer(), kSlice).code() == EPIPE);
  CHECK(cuda().cuStreamSynchronize(at.on) == 0);
  CHECK(test::device_bytes(ends.in.pointer(), 3 * kSlice) == sent);
  CHECK(to.state().error == 0 && to.state().passed == 4);
  if (!dies) CHECK_OK(at.with->barrier());
  return 0;
}

// Rank 1 has queued more than rank 0 will ever do: a wait, and a put that needs a release.
inline int what_never_comes_is_let_go(const scene& at, executor_kind kind, bool is_wait) {
  two_ends ends;
  auto options = by(kind);
  options.depth = 1;
  options.wait_timeout = 0ns;  // not what lets go here
  if (const int line = ends.open(at, options)) return line;
  if (at.rank == 0) {
    CHECK_OK(ends.to->signal(at.on));
    CHECK_OK(at.with->barrier());
    CHECK(cuda().cuStreamSynchronize(at.on) == 0);
    ends.to.reset();
  } else {
    if (is_wait) CHECK_OK(ends.to->wait_signal(at.on));
    for (int i = 0; i < 2; ++i)
      if (is_wait) CHECK_OK(ends.to->wait_signal(at.on));
      else CHECK_OK(ends.to->signal(at.on));
    CHECK_OK(at.with->barrier());
    CHECK(cuda().cuStreamSynchronize(at.on) == 0);
    CHECK(ends.to->state().error == EPIPE);
    CHECK(ends.to->wait_signal(at.on, 1).code() == EPIPE);
  }
  CHECK_OK(at.with->barrier());
  return 0;
}

}  // namespace pl::stream
