// SPDX-License-Identifier: Apache-2.0
// Channels between two processes, by the proxy executor.
#include "proxy_executor.hpp"
#include "stream_job.hpp"

namespace pl::stream {
namespace {

constexpr std::size_t kBytes = 6u << 20;  // more than all slots hold, and not whole chunks

channel_options by_proxy() {
  channel_options out;
  out.executor = executor_kind::proxy;
  return out;
}

context_options over_network() {
  context_options out;
  out.messages.path = link::messenger_options::path_t::network;
  return out;
}

context_options economy() {
  context_options out;
  out.mode = run_mode::economy;
  return out;
}

struct two_ends {
  test::device_buffer in{kBytes}, out{kBytes};
  std::unique_ptr<channel> to;
  remote_window there;
  window_key mine;
  int open(const scene& at, const channel_options& options = by_proxy()) {
    auto exposed = at.by->expose(in.pointer(), kBytes);
    CHECK_OK(exposed);
    mine = *exposed;
    auto keys = exchange_keys(at, mine);
    CHECK_OK(keys);
    const auto& theirs = (*keys)[static_cast<std::size_t>(1 - at.rank)];
    there = {theirs.id, theirs.rank, theirs.memory.bytes, 0};  // the proxy asks for no more
    auto end = at.by->connect(1 - at.rank, 7, options);
    CHECK_OK(end);
    to = std::move(end).value();
    CHECK_OK(to->ready(kPatience));
    CHECK(to->executor() == executor_kind::proxy);
    return 0;
  }
};

int synchronize(const scene& at) {
  CHECK(cuda().cuStreamSynchronize(at.on) == 0);
  return 0;
}

int exchange_sizes(const scene& at, two_ends& ends) {
  std::uint64_t round = 0;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{100}, std::size_t{4096},
                                  kChunkBytes, kChunkBytes + 1, kBytes - 3}) {
    const auto offset = bytes == kBytes - 3 ? std::size_t{3} : std::size_t{64} % (kBytes - bytes + 1);
    for (int i = 0; i < 2; ++i, ++round) {
      test::set_device_bytes(ends.out.pointer(), test::random_bytes(bytes, round * 2 + static_cast<unsigned>(at.rank)));
      if (at.rank == 1) CHECK_OK(ends.to->wait_signal(at.on));
      CHECK_OK(ends.to->put_signal(at.on, ends.there, offset, ends.out.pointer(), bytes));
      if (at.rank == 0) CHECK_OK(ends.to->wait_signal(at.on));
      if (const int line = synchronize(at)) return line;
      CHECK(test::device_bytes(ends.in.pointer() + offset, bytes) ==
            test::random_bytes(bytes, round * 2 + static_cast<unsigned>(1 - at.rank)));
      CHECK_OK(at.with->barrier());
    }
  }
  const auto now = ends.to->state();
  CHECK(now.error == 0 && now.puts == round && now.sent == round && now.waits == round && now.passed == round);
  return 0;
}

int ping_pong(const scene& at) {
  two_ends ends;
  if (const int line = ends.open(at)) return line;
  if (const int line = exchange_sizes(at, ends)) return line;
  CHECK_OK(at.with->barrier());
  return 0;
}

TEST(proxy, ping_pong_between_two_gpus) { EXPECT_EQ(run_streams(2, gpus::one_each, {}, ping_pong), 0); }
TEST(proxy, ping_pong_on_one_gpu) { EXPECT_EQ(run_streams(2, gpus::shared, {}, ping_pong), 0); }
TEST(proxy, ping_pong_as_between_two_nodes) { EXPECT_EQ(run_streams(2, gpus::one_each, over_network(), ping_pong), 0); }
TEST(proxy, ping_pong_in_economy_mode) { EXPECT_EQ(run_streams(2, gpus::one_each, economy(), ping_pong), 0); }

TEST(proxy, ping_pong_with_late_stores) {
  setenv("PEERLANE_SIM_DELAY", "200", 1);  // read by the children, which are the first to touch the simulator
  setenv("PEERLANE_SIM_SEED", "7", 1);
  EXPECT_EQ(run_streams(2, gpus::one_each, {}, ping_pong), 0);
  unsetenv("PEERLANE_SIM_DELAY");
  unsetenv("PEERLANE_SIM_SEED");
}

// Each put adds a byte to what the one before wrote: after wait n the first n bytes are there.
int many_small(const scene& at) {
  constexpr std::uint64_t kCount = 300;
  two_ends ends;
  if (const int line = ends.open(at)) return line;
  std::vector<unsigned char> pattern(kCount);
  for (std::size_t i = 0; i < kCount; ++i) pattern[i] = static_cast<unsigned char>(i + 1);
  if (at.rank == 0) {
    test::set_device_bytes(ends.out.pointer(), pattern);
    for (std::uint64_t i = 0; i < kCount; ++i) {
      auto done = ends.to->put_signal(at.on, ends.there, i, ends.out.pointer() + i, 1);
      while (done.code() == EAGAIN) {
        sched_yield();
        done = ends.to->put_signal(at.on, ends.there, i, ends.out.pointer() + i, 1);
      }
      CHECK_OK(done);
    }
  } else {
    for (std::uint64_t i = 1; i <= kCount; ++i) {
      CHECK_OK(ends.to->host_wait(i, kPatience));
      const auto here = test::device_bytes(ends.in.pointer(), i);
      CHECK(std::equal(here.begin(), here.end(), pattern.begin()));
    }
  }
  CHECK_OK(at.with->barrier());
  return 0;
}

TEST(proxy, many_small_puts_arrive_in_their_order) { EXPECT_EQ(run_streams(2, gpus::one_each, {}, many_small), 0); }
TEST(proxy, many_small_puts_arrive_in_their_order_over_the_network) {
  EXPECT_EQ(run_streams(2, gpus::one_each, over_network(), many_small), 0);
}

int depth_two(const scene& at) {
  two_ends ends;
  auto options = by_proxy();
  options.depth = 2;
  if (const int line = ends.open(at, options)) return line;
  auto& to = *ends.to;
  if (at.rank == 0) {
    for (int i = 0; i < 4; ++i) CHECK_OK(to.put_signal(at.on, ends.there, 0, ends.out.pointer(), 64));
    CHECK_OK(at.with->barrier());  // rank 1 has seen two puts, and not three
    CHECK(to.state().sent == 2);
    CHECK(to.diag().find("2 ready to be sent") != std::string::npos);
    CHECK_OK(at.with->barrier());
    if (const int line = synchronize(at)) return line;
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
  if (const int line = synchronize(at)) return line;
  CHECK_OK(at.with->barrier());
  return 0;
}

TEST(proxy, depth_holds_puts_back_until_the_peer_has_released) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {}, depth_two), 0);
}
TEST(proxy, depth_in_economy_mode) { EXPECT_EQ(run_streams(2, gpus::one_each, economy(), depth_two), 0); }

// The last put is carried although its channel is closed right behind it, and the id can be used again at once.
TEST(proxy, what_was_put_before_closing_arrives) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          for (int round = 0; round < 3; ++round) {
                            two_ends ends;
                            if (const int line = ends.open(at)) return line;
                            const auto all = test::random_bytes(kBytes, static_cast<unsigned>(round));
                            if (at.rank == 0) {
                              test::set_device_bytes(ends.out.pointer(), all);
                              CHECK_OK(ends.to->put_signal(at.on, ends.there, 0, ends.out.pointer(), kBytes));
                              if (const int line = synchronize(at)) return line;
                            } else {
                              CHECK_OK(ends.to->wait_signal(at.on));
                              if (const int line = synchronize(at)) return line;
                              CHECK(test::device_bytes(ends.in.pointer(), kBytes) == all);
                            }
                            ends.to.reset();
                            at.by->withdraw(ends.mine);
                          }
                          CHECK_OK(at.with->barrier());
                          return 0;
                        }),
            0);
}

// ---- Errors

TEST(proxy, a_stuck_wait_is_let_go_after_its_time) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          auto options = by_proxy();
                          if (at.rank == 0) options.wait_timeout = 50ms;
                          if (const int line = ends.open(at, options)) return line;
                          CHECK_OK(ends.to->wait_signal(at.on, 9));
                          if (const int line = synchronize(at)) return line;
                          CHECK(ends.to->state().error == (at.rank == 0 ? ETIMEDOUT : EPIPE));
                          CHECK_OK(at.with->barrier());
                          return 0;
                        }),
            0);
}

// Streams that wait for a release and for a slot are let go too.
TEST(proxy, cancel_lets_every_wait_go) {
  EXPECT_EQ(
      run_streams(2, gpus::one_each, {},
                  [](const scene& at) {
                    two_ends ends;
                    auto options = by_proxy();
                    options.depth = 1;
                    if (const int line = ends.open(at, options)) return line;
                    for (int i = 0; i < 4; ++i)
                      CHECK_OK(ends.to->put_signal(at.on, ends.there, 0, ends.out.pointer(), kBytes));
                    CHECK_OK(ends.to->wait_signal(at.on, 9));
                    CHECK_OK(at.with->barrier());
                    if (at.rank == 0) ends.to->cancel(ECANCELED);
                    if (const int line = synchronize(at)) return line;
                    CHECK(ends.to->state().error == (at.rank == 0 ? ECANCELED : EPIPE));
                    CHECK(ends.to->put_signal(at.on, ends.there, 0, ends.out.pointer(), 1).code() == ends.to->state().error);
                    CHECK_OK(at.with->barrier());
                    return 0;
                  }),
      0);
}

TEST(proxy, death_of_the_peer_lets_its_waiters_go) {
  for (const auto& options : {context_options{}, over_network(), economy()})
    EXPECT_EQ(run_streams(
                  2, gpus::one_each, options,
                  [](const scene& at) {
                    two_ends ends;
                    if (const int line = ends.open(at)) return line;
                    CHECK_OK(at.with->barrier());
                    if (at.rank == 1) raise(SIGKILL);
                    for (int i = 0; i < 3; ++i)
                      if (const auto put = ends.to->put_signal(at.on, ends.there, 0, ends.out.pointer(), kBytes); !put)
                        CHECK(put.code() == ECONNRESET);
                    if (const auto wait = ends.to->wait_signal(at.on); !wait) CHECK(wait.code() == ECONNRESET);
                    if (const int line = synchronize(at)) return line;
                    while (ends.to->state().error == 0) sched_yield();
                    CHECK(ends.to->state().error == ECONNRESET);
                    return 0;
                  },
                  1),
              0);
}

// What the sender believes of the window is not what the receiver goes by.
int bad_window(const scene& at, const std::function<void(remote_window&)>& spoil) {
  two_ends ends;
  if (const int line = ends.open(at)) return line;
  const auto before = test::device_bytes(ends.in.pointer(), kBytes);
  if (at.rank == 0) {
    auto wrong = ends.there;
    spoil(wrong);
    CHECK_OK(ends.to->put_signal(at.on, wrong, wrong.bytes - 128, ends.out.pointer(), 128));
  } else if (const auto wait = ends.to->wait_signal(at.on); !wait) {
    CHECK(wait.code() == EPROTO);  // it was here first
  }
  if (const int line = synchronize(at)) return line;
  while (ends.to->state().error == 0) sched_yield();
  CHECK(ends.to->state().error == (at.rank == 0 ? EPIPE : EPROTO));
  CHECK(test::device_bytes(ends.in.pointer(), kBytes) == before);
  CHECK_OK(at.with->barrier());
  return 0;
}

TEST(proxy, a_put_outside_the_window_is_an_error_and_writes_nothing) {
  for (const std::uint64_t by : {std::uint64_t{1}, std::uint64_t{1} << 40, ~std::uint64_t{0} - kBytes})
    EXPECT_EQ(run_streams(2, gpus::one_each, {},
                          [&](const scene& at) { return bad_window(at, [&](remote_window& w) { w.bytes += by; }); }),
              0);
}

TEST(proxy, a_put_into_no_window_is_an_error) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) { return bad_window(at, [](remote_window& w) { w.id += 100; }); }),
            0);
}

TEST(proxy, a_full_stream_answers_eagain) {
  EXPECT_EQ(
      run_streams(2, gpus::one_each, {},
                  [](const scene& at) {
                    two_ends ends;
                    if (const int line = ends.open(at)) return line;
                    CHECK_OK(ends.to->wait_signal(at.on));  // nothing rings before it is over
                    int puts = 0;
                    status last;
                    while (last && puts < 100) {
                      const auto put = ends.to->put_signal(at.on, ends.there, 0, ends.out.pointer(), kBytes);
                      if (put) ++puts;
                      else last = put.error();
                    }
                    CHECK(last.code() == EAGAIN && puts == static_cast<int>(carrier::kMostQueued * kChunkBytes / kBytes));
                    CHECK_OK(at.with->barrier());
                    if (at.rank == 0) ends.to->cancel(ECANCELED);
                    if (const int line = synchronize(at)) return line;
                    CHECK_OK(at.with->barrier());
                    return 0;
                  }),
      0);
}

// ---- Sleep

std::uint64_t count_of(const std::string& diag, const std::string& what) {
  const auto end = diag.find(" " + what);
  const auto begin = diag.rfind(' ', end - 1) + 1;
  return std::stoull(diag.substr(begin, end - begin));
}

// A doorbell that rings while the thread is in its deep sleep: the event wakes it.
TEST(proxy, economy_sleeps_and_is_woken_by_the_gpu) {
  EXPECT_EQ(run_streams(2, gpus::one_each, economy(),
                        [](const scene& at) {
                          two_ends ends;
                          if (const int line = ends.open(at)) return line;
                          for (std::uint64_t i = 1; i <= 20; ++i) {
                            const auto sleeps = count_of(at.by->diag(), "sleeps");
                            while (count_of(at.by->diag(), "sleeps") == sleeps) sched_yield();
                            if (at.rank == 0) CHECK_OK(ends.to->put_signal(at.on, ends.there, 0, ends.out.pointer(), 8));
                            else CHECK_OK(ends.to->wait_signal(at.on));
                            if (const int line = synchronize(at)) return line;
                            if (at.rank == 1) CHECK_OK(ends.to->host_wait(i, kPatience));
                            CHECK_OK(at.with->barrier());
                          }
                          CHECK(count_of(at.by->diag(), "wake-ups") > 0);
                          at.by->set_mode(run_mode::performance);
                          if (at.rank == 0) CHECK_OK(ends.to->put_signal(at.on, ends.there, 0, ends.out.pointer(), kBytes));
                          else CHECK_OK(ends.to->host_wait(21, kPatience));
                          CHECK(at.by->diag().find("performance mode") != std::string::npos);
                          CHECK_OK(at.with->barrier());
                          return 0;
                        }),
            0);
}

}  // namespace
}  // namespace pl::stream
