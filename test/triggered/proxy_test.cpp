// SPDX-License-Identifier: Apache-2.0
// Channels between two processes, by the proxy executor.
#include "test/triggered/ends.hpp"
#include "test/triggered/stream_job.hpp"
#include "triggered/proxy_executor.hpp"
#include "triggered/shm_proxy.hpp"
#include "triggered/staging.hpp"

namespace pl::triggered {
namespace {

constexpr std::size_t kLargeBytes = 6u << 20;  // more than all slots hold, and not whole chunks

channel_options by_proxy() { return options_for(executor_kind::proxy); }

context_options over_network() {
  context_options out;
  out.messages.path = messaging::messenger_options::path_t::network;
  return out;
}

context_options economy() {
  context_options out;
  out.mode = run_mode::economy;
  return out;
}

struct proxy_ends : two_ends {
  proxy_ends() : two_ends(kLargeBytes) {}
  int open(const rank_session& session, const channel_options& options = by_proxy()) {
    if (const int line = two_ends::open(session, options)) return line;
    CHECK(peer_channel->executor() == executor_kind::proxy);
    return 0;
  }
};

int synchronize(const rank_session& session) {
  CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
  return 0;
}

int exchange_sizes(const rank_session& session, proxy_ends& ends) {
  std::uint64_t round = 0;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{100}, std::size_t{4096}, kSmallBytes,
        kSpreadChunkBytes + 1, kMaxSpreadBytes, kMaxSpreadBytes + 1, kLargeBytes - 3}) {
    const auto offset = bytes == kLargeBytes - 3 ? std::size_t{3} : std::size_t{64} % (kLargeBytes - bytes + 1);
    for (int i = 0; i < 2; ++i, ++round) {
      test::set_device_bytes(ends.send_buffer.pointer(),
                             test::random_bytes(bytes, round * 2 + static_cast<unsigned>(session.rank)));
      if (session.rank == 1) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
      CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, offset, ends.send_buffer.pointer(), bytes));
      if (session.rank == 0) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
      if (const int line = synchronize(session)) return line;
      CHECK(test::device_bytes(ends.receive_buffer.pointer() + offset, bytes) ==
            test::random_bytes(bytes, round * 2 + static_cast<unsigned>(1 - session.rank)));
      CHECK_OK(session.bootstrap->barrier());
    }
  }
  const auto now = ends.peer_channel->state();
  CHECK(now.error == 0 && now.puts == round && now.sent == round && now.waits == round && now.passed == round);
  return 0;
}

int ping_pong_by_proxy(const rank_session& session) {
  proxy_ends ends;
  if (const int line = ends.open(session)) return line;
  if (const int line = exchange_sizes(session, ends)) return line;
  CHECK_OK(session.bootstrap->barrier());
  return 0;
}

TEST(proxy, ping_pong_between_two_gpus) { EXPECT_EQ(run_streams(2, gpus::one_each, {}, ping_pong_by_proxy), 0); }
TEST(proxy, ping_pong_on_one_gpu) { EXPECT_EQ(run_streams(2, gpus::shared, {}, ping_pong_by_proxy), 0); }
TEST(proxy, ping_pong_as_between_two_nodes) {
  EXPECT_EQ(run_streams(2, gpus::one_each, over_network(), ping_pong_by_proxy), 0);
}
// Small puts too go as several messages.
TEST(proxy, ping_pong_as_between_two_nodes_in_short_packets) {
  auto options = over_network();
  options.messages.eager_limit = 4096;
  EXPECT_EQ(run_streams(2, gpus::one_each, options, ping_pong_by_proxy), 0);
}
TEST(proxy, ping_pong_as_between_two_nodes_without_a_receive_engine) {
  const with_variable off("PEERLANE_STREAM_RECEIVE", "off");
  EXPECT_EQ(run_streams(2, gpus::one_each, over_network(), ping_pong_by_proxy), 0);
}
TEST(proxy, ping_pong_without_spread_kernels_in_small_chunks) {
  const with_variable chunk("PEERLANE_STREAM_CHUNK", "20000"), spread("PEERLANE_STREAM_SPREAD", "0");
  EXPECT_EQ(run_streams(2, gpus::one_each, {}, ping_pong_by_proxy), 0);
  EXPECT_EQ(run_streams(2, gpus::one_each, over_network(), ping_pong_by_proxy), 0);
}
TEST(proxy, ping_pong_in_economy_mode) { EXPECT_EQ(run_streams(2, gpus::one_each, economy(), ping_pong_by_proxy), 0); }

#if !defined(__SANITIZE_THREAD__)  // late stores of 6 MiB take longer than the processes wait for each other there
TEST(proxy, ping_pong_with_late_stores) {
  setenv("PEERLANE_SIM_DELAY", "200", 1);  // read by the children, which are the first to touch the simulator
  setenv("PEERLANE_SIM_SEED", "7", 1);
  EXPECT_EQ(run_streams(2, gpus::one_each, {}, ping_pong_by_proxy), 0);
  unsetenv("PEERLANE_SIM_DELAY");
  unsetenv("PEERLANE_SIM_SEED");
}
#endif

// Each put adds a byte to what the one before wrote: after wait n the first n bytes are there.
int many_small(const rank_session& session) {
  constexpr std::uint64_t kCount = 300;
  proxy_ends ends;
  if (const int line = ends.open(session)) return line;
  std::vector<unsigned char> pattern(kCount);
  for (std::size_t i = 0; i < kCount; ++i) pattern[i] = static_cast<unsigned char>(i + 1);
  if (session.rank == 0) {
    test::set_device_bytes(ends.send_buffer.pointer(), pattern);
    for (std::uint64_t i = 0; i < kCount; ++i) {
      auto done = ends.peer_channel->put_signal(session.stream, ends.peer_window, i, ends.send_buffer.pointer() + i, 1);
      while (done.code() == EAGAIN) {
        sched_yield();
        done = ends.peer_channel->put_signal(session.stream, ends.peer_window, i, ends.send_buffer.pointer() + i, 1);
      }
      CHECK_OK(done);
    }
  } else {
    for (std::uint64_t i = 1; i <= kCount; ++i) {
      CHECK_OK(ends.peer_channel->host_wait(i, kTimeout));
      const auto received = test::device_bytes(ends.receive_buffer.pointer(), i);
      CHECK(std::equal(received.begin(), received.end(), pattern.begin()));
    }
  }
  CHECK_OK(session.bootstrap->barrier());
  return 0;
}

TEST(proxy, many_small_puts_arrive_in_their_order) { EXPECT_EQ(run_streams(2, gpus::one_each, {}, many_small), 0); }
TEST(proxy, many_small_puts_with_late_stores) {
  const with_variable late("PEERLANE_SIM_DELAY", "200"), seed("PEERLANE_SIM_SEED", "7");
  EXPECT_EQ(run_streams(2, gpus::one_each, {}, many_small), 0);
}
TEST(proxy, many_small_puts_arrive_in_their_order_over_the_network) {
  EXPECT_EQ(run_streams(2, gpus::one_each, over_network(), many_small), 0);
}

int depth_two(const rank_session& session) { return depth_holds_puts_back(session, executor_kind::proxy); }

TEST(proxy, depth_holds_puts_back_until_the_peer_has_released) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {}, depth_two), 0);
}
TEST(proxy, depth_over_the_network) { EXPECT_EQ(run_streams(2, gpus::one_each, over_network(), depth_two), 0); }
TEST(proxy, depth_in_economy_mode) { EXPECT_EQ(run_streams(2, gpus::one_each, economy(), depth_two), 0); }

// ---- What a message costs: operations on streams, counted at the driver

struct operation_counts {
  std::atomic<unsigned> launches{0}, copies{0}, lists{0}, words{0};
};
operation_counts g_counts;

cu::result_t count_launch(cu::function_t kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned block_y,
                          unsigned bz, unsigned shared, cu::stream_t stream, void** parameters, void** extra) {
  ++g_counts.launches;
  return cuda().cuLaunchKernel(kernel, gx, gy, gz, bx, block_y, bz, shared, stream, parameters, extra);
}
cu::result_t count_copy(void* target, cu::device_ptr origin, std::size_t bytes, cu::stream_t stream) {
  ++g_counts.copies;
  return cuda().cuMemcpyDtoHAsync_v2(target, origin, bytes, stream);
}
cu::result_t count_list(cu::stream_t stream, unsigned count, cu::mem_op_params* ops, unsigned flags) {
  ++g_counts.lists;
  g_counts.words += count;
  return cuda().cuStreamBatchMemOp_v2(stream, count, ops, flags);
}
void count_operations(cu::driver_table& table) {
  table.cuLaunchKernel = count_launch;
  table.cuMemcpyDtoHAsync_v2 = count_copy;
  table.cuStreamBatchMemOp_v2 = count_list;
}

struct cost {
  unsigned launches, copies, lists, words;
};

// Of `puts` puts of rank 0 and as many waits of rank 1, all queued at once behind each other.
int costs(const rank_session& session, std::size_t bytes, unsigned puts, const cost& of_put, const cost& of_wait) {
  proxy_ends ends;
  if (const int line = ends.open(session)) return line;
  CHECK_OK(session.bootstrap->barrier());
  auto& counts = g_counts;
  counts.launches = counts.copies = counts.lists = counts.words = 0;
  for (unsigned i = 0; i < puts; ++i) {
    if (session.rank == 0)
      CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), bytes));
    else CHECK_OK(ends.peer_channel->wait_signal(session.stream));
  }
  const auto& each = session.rank == 0 ? of_put : of_wait;
  CHECK(counts.launches == puts * each.launches && counts.copies == puts * each.copies);
  CHECK(counts.lists == puts * each.lists && counts.words == puts * each.words);
  if (const int line = synchronize(session)) return line;
  CHECK_OK(session.bootstrap->barrier());
  return 0;
}

void expect_costs(const context_options& options, std::size_t bytes, unsigned puts, const cost& of_put,
                  const cost& of_wait) {
  EXPECT_EQ(
      run_streams(
          2, gpus::one_each, options,
          [&](const rank_session& session) { return costs(session, bytes, puts, of_put, of_wait); }, -1, count_operations),
      0);
}

constexpr cost kWait{0, 0, 1, 2};  // "the stream is there" and the wait

TEST(proxy, a_small_put_is_one_launch_however_many_are_queued) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{128}, kInlineBytes})
    expect_costs({}, bytes, 100, {1, 0, 0, 0}, kWait);
}
TEST(proxy, a_signal_is_one_word) { expect_costs({}, 0, 100, {0, 0, 1, 1}, kWait); }
TEST(proxy, a_put_of_many_pieces_is_one_launch) {
  for (const std::size_t bytes : {kInlineBytes + 1, kMaxSpreadBytes}) expect_costs({}, bytes, 2, {1, 0, 0, 0}, kWait);
}
TEST(proxy, a_chunk_is_one_copy_and_one_word) {
  constexpr unsigned kChunks = kMaxSpreadBytes / (64 << 10) + 1;
  expect_costs({}, kMaxSpreadBytes + 1, 1, {0, kChunks, kChunks, kChunks}, kWait);
}
TEST(proxy, a_small_put_over_the_network_is_one_launch) { expect_costs(over_network(), 128, 10, {1, 0, 0, 0}, kWait); }

// The last put arrives although its channel is closed right after it, and the id can be reused at once.
TEST(proxy, what_was_put_before_closing_arrives) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const rank_session& session) {
                          for (int round = 0; round < 3; ++round) {
                            proxy_ends ends;
                            if (const int line = ends.open(session)) return line;
                            const auto all = test::random_bytes(kLargeBytes, static_cast<unsigned>(round));
                            if (session.rank == 0) {
                              test::set_device_bytes(ends.send_buffer.pointer(), all);
                              CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0,
                                                                     ends.send_buffer.pointer(), kLargeBytes));
                              if (const int line = synchronize(session)) return line;
                            } else {
                              CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                              if (const int line = synchronize(session)) return line;
                              CHECK(test::device_bytes(ends.receive_buffer.pointer(), kLargeBytes) == all);
                            }
                            ends.peer_channel.reset();
                            session.streams->withdraw(ends.mine);
                          }
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

TEST(proxy, what_was_put_outlives_the_peers_end) {
  for (const bool dies : {false, true})
    for (const auto& options : {context_options{}, over_network(), economy()})
      EXPECT_EQ(run_streams(
                    2, gpus::one_each, options,
                    [=](const rank_session& session) {
                      return what_was_put_outlives_the_channel(session, executor_kind::proxy, dies);
                    },
                    dies ? 0 : -1),
                0);
}
TEST(proxy, a_closed_peer_releases_waiting_streams) {
  for (const bool is_wait : {true, false})
    for (const auto& options : {context_options{}, over_network()})
      EXPECT_EQ(run_streams(2, gpus::one_each, options,
                            [=](const rank_session& session) {
                              return what_never_comes_is_let_go(session, executor_kind::proxy, is_wait);
                            }),
                0);
}

// ---- Errors

TEST(proxy, a_stuck_wait_is_released_after_its_timeout) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const rank_session& session) {
                          proxy_ends ends;
                          auto options = by_proxy();
                          if (session.rank == 0) options.wait_timeout = 50ms;
                          if (const int line = ends.open(session, options)) return line;
                          CHECK_OK(ends.peer_channel->wait_signal(session.stream, 9));
                          if (const int line = synchronize(session)) return line;
                          CHECK(ends.peer_channel->state().error == (session.rank == 0 ? ETIMEDOUT : EPIPE));
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

// Streams that wait for a release and for a slot are released too.
TEST(proxy, cancel_lets_every_wait_go) {
  EXPECT_EQ(
      run_streams(
          2, gpus::one_each, {},
          [](const rank_session& session) {
            proxy_ends ends;
            auto options = by_proxy();
            options.depth = 1;
            if (const int line = ends.open(session, options)) return line;
            for (int i = 0; i < 4; ++i)
              CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(),
                                                     kLargeBytes));
            CHECK_OK(ends.peer_channel->wait_signal(session.stream, 9));
            CHECK_OK(session.bootstrap->barrier());
            if (session.rank == 0) ends.peer_channel->cancel(ECANCELED);
            if (const int line = synchronize(session)) return line;
            CHECK(ends.peer_channel->state().error == (session.rank == 0 ? ECANCELED : EPIPE));
            CHECK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), 1).code() ==
                  ends.peer_channel->state().error);
            CHECK_OK(session.bootstrap->barrier());
            return 0;
          }),
      0);
}

TEST(proxy, death_of_the_peer_releases_its_waiters) {
  for (const auto& options : {context_options{}, over_network(), economy()})
    EXPECT_EQ(run_streams(
                  2, gpus::one_each, options,
                  [](const rank_session& session) {
                    proxy_ends ends;
                    if (const int line = ends.open(session)) return line;
                    CHECK_OK(session.bootstrap->barrier());
                    if (session.rank == 1) raise(SIGKILL);
                    for (int i = 0; i < 3; ++i)
                      if (const auto put = ends.peer_channel->put_signal(session.stream, ends.peer_window, 0,
                                                                         ends.send_buffer.pointer(), kLargeBytes);
                          !put)
                        CHECK(put.code() == ECONNRESET);
                    if (const auto wait = ends.peer_channel->wait_signal(session.stream); !wait)
                      CHECK(wait.code() == ECONNRESET);
                    if (const int line = synchronize(session)) return line;
                    while (ends.peer_channel->state().error == 0) sched_yield();
                    CHECK(ends.peer_channel->state().error == ECONNRESET);
                    return 0;
                  },
                  1),
              0);
}

// The receiver checks against its own window, not against what the sender believes.
int bad_window(const rank_session& session, const std::function<void(remote_window&)>& spoil) {
  proxy_ends ends;
  if (const int line = ends.open(session)) return line;
  const auto before = test::device_bytes(ends.receive_buffer.pointer(), kLargeBytes);
  if (session.rank == 0) {
    auto wrong = ends.peer_window;
    spoil(wrong);
    CHECK_OK(ends.peer_channel->put_signal(session.stream, wrong, wrong.bytes - 128, ends.send_buffer.pointer(), 128));
  } else if (const auto wait = ends.peer_channel->wait_signal(session.stream); !wait) {
    CHECK(wait.code() == EPROTO);  // it was here first
  }
  if (const int line = synchronize(session)) return line;
  while (ends.peer_channel->state().error == 0) sched_yield();
  CHECK(ends.peer_channel->state().error == (session.rank == 0 ? EPIPE : EPROTO));
  CHECK(test::device_bytes(ends.receive_buffer.pointer(), kLargeBytes) == before);
  CHECK_OK(session.bootstrap->barrier());
  return 0;
}

TEST(proxy, a_put_outside_the_window_is_an_error_and_writes_nothing) {
  for (const std::uint64_t excess : {std::uint64_t{1}, std::uint64_t{1} << 40, ~std::uint64_t{0} - kLargeBytes})
    EXPECT_EQ(run_streams(2, gpus::one_each, {},
                          [&](const rank_session& session) {
                            return bad_window(session, [&](remote_window& w) { w.bytes += excess; });
                          }),
              0);
}

TEST(proxy, a_put_into_no_window_is_an_error) {
  EXPECT_EQ(
      run_streams(2, gpus::one_each, {},
                  [](const rank_session& session) { return bad_window(session, [](remote_window& w) { w.id += 100; }); }),
      0);
}

TEST(proxy, a_full_stream_answers_eagain) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const rank_session& session) {
                          proxy_ends ends;
                          if (const int line = ends.open(session)) return line;
                          CHECK_OK(ends.peer_channel->wait_signal(session.stream));  // nothing rings before it is over
                          int puts = 0;
                          status last;
                          while (last && puts < 100) {
                            const auto put = ends.peer_channel->put_signal(session.stream, ends.peer_window, 0,
                                                                           ends.send_buffer.pointer(), kLargeBytes);
                            if (put) ++puts;
                            else last = put.error();
                          }
                          CHECK(last.code() == EAGAIN &&
                                puts == static_cast<int>(shm_proxy::kMaxChunks * put_chunking{}.chunk_of(kLargeBytes) /
                                                         kLargeBytes));
                          CHECK_OK(session.bootstrap->barrier());
                          if (session.rank == 0) ends.peer_channel->cancel(ECANCELED);
                          if (const int line = synchronize(session)) return line;
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

// ---- Sleep

std::uint64_t count_of(const std::string& diag, const std::string& description) {
  const auto end = diag.find(" " + description);
  const auto begin = diag.rfind(' ', end - 1) + 1;
  return std::stoull(diag.substr(begin, end - begin));
}

// A doorbell that rings while the thread is in its deep sleep: the event wakes it.
TEST(proxy, economy_sleeps_and_is_woken_by_the_gpu) {
  EXPECT_EQ(run_streams(2, gpus::one_each, economy(),
                        [](const rank_session& session) {
                          proxy_ends ends;
                          if (const int line = ends.open(session)) return line;
                          for (std::uint64_t i = 1; i <= 20; ++i) {
                            const auto sleeps = count_of(session.streams->diag(), "sleeps");
                            while (count_of(session.streams->diag(), "sleeps") == sleeps) sched_yield();
                            if (session.rank == 0)
                              CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0,
                                                                     ends.send_buffer.pointer(), 8));
                            else CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                            if (const int line = synchronize(session)) return line;
                            if (session.rank == 1) CHECK_OK(ends.peer_channel->host_wait(i, kTimeout));
                            CHECK_OK(session.bootstrap->barrier());
                          }
                          CHECK(count_of(session.streams->diag(), "wake-ups") > 0);
                          session.streams->set_mode(run_mode::performance);
                          if (session.rank == 0)
                            CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0,
                                                                   ends.send_buffer.pointer(), kLargeBytes));
                          else CHECK_OK(ends.peer_channel->host_wait(21, kTimeout));
                          CHECK(session.streams->diag().find("performance mode") != std::string::npos);
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

}  // namespace
}  // namespace pl::triggered
