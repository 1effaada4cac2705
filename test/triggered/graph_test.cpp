// SPDX-License-Identifier: Apache-2.0
// Puts, waits and releases inside CUDA graphs.
#include <algorithm>
#include <atomic>

#include "base/clock.hpp"
#include "test/triggered/ends.hpp"
#include "triggered/channel.hpp"

namespace pl::triggered {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr unsigned kKernelReplays = 2, kManyPairs = 6;  // a kernel's threads are slow there
#else
constexpr unsigned kKernelReplays = 50, kManyPairs = kGraphSlots + 10;
#endif
constexpr unsigned kExchanges = 4;
constexpr std::size_t kSlice = 4096;

struct captured {
  cu::graph_t graph = nullptr;
  cu::graph_exec_t exec = nullptr;
  int make(cu::stream_t stream, const std::function<int()>& body) {
    CHECK(cuda().cuStreamBeginCapture_v2(stream, cu::capture_mode::thread_local_only) == 0);
    if (const int line = body()) return line;
    CHECK(cuda().cuStreamEndCapture(stream, &graph) == 0);
    CHECK(cuda().cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
    return 0;
  }
  int destroy() {
    CHECK(cuda().cuGraphExecDestroy(exec) == 0);
    CHECK(cuda().cuGraphDestroy(graph) == 0);
    return 0;
  }
};

// Rank 0 puts, rank 1 answers, four times, each into a slice of its own; what came is used up before it is released.
int exchanges(const rank_session& session, two_ends& ends, const test::device_buffer& used, std::size_t bytes) {
  for (unsigned i = 0; i < kExchanges; ++i) {
    const auto put = [&]() -> int {
      CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, i * kSlice,
                                             ends.send_buffer.pointer() + i * kSlice, bytes));
      return 0;
    };
    if (session.rank == 0)
      if (const int line = put()) return line;
    const auto number = ends.peer_channel->wait_signal(session.stream);
    CHECK_OK(number);
    if (session.rank == 1)
      if (const int line = put()) return line;
    CHECK(cuda().cuMemcpyDtoDAsync_v2(used.pointer() + i * kSlice, ends.receive_buffer.pointer() + i * kSlice, bytes,
                                      session.stream) == 0);
    CHECK_OK(ends.peer_channel->release(session.stream, *number));
  }
  return 0;
}

int replay(const rank_session& session, std::size_t bytes, unsigned launches, const channel_options& options) {
  two_ends ends;
  if (const int line = ends.open(session, options)) return line;
  const test::device_buffer used{kExchanges * kSlice};
  captured graph;
  if (const int line = graph.make(session.stream, [&] { return exchanges(session, ends, used, bytes); })) return line;
  for (unsigned round = 0; round < launches; ++round) {
    const auto seed = [&](int rank, unsigned i) { return (round * 2 + static_cast<unsigned>(rank)) * kExchanges + i; };
    for (unsigned i = 0; i < kExchanges; ++i)
      test::set_device_bytes(ends.send_buffer.pointer() + i * kSlice, test::random_bytes(bytes, seed(session.rank, i)));
    CHECK(cuda().cuGraphLaunch(graph.exec, session.stream) == 0);
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    for (unsigned i = 0; i < kExchanges; ++i)
      CHECK(test::device_bytes(used.pointer() + i * kSlice, bytes) == test::random_bytes(bytes, seed(1 - session.rank, i)));
  }
  CHECK(ends.peer_channel->state().error == 0 && ends.peer_channel->state().puts == 0);
  CHECK_OK(session.bootstrap->barrier());
  return graph.destroy();
}

using graphs = by_executor;
INSTANTIATE_TEST_SUITE_P(executors, graphs, kExecutorCases, name_of_case);

TEST_P(graphs, a_captured_ping_pong_is_replayed) {
  EXPECT_EQ(run([kind = kind()](const rank_session& session) { return replay(session, 100, 50, options_for(kind)); }), 0);
}

TEST(graph, and_by_every_way_to_write_a_flag) {
  for (const auto writer : {writer_choice::direct, writer_choice::copied, writer_choice::kernel}) {
    context_options options;
    options.writer = writer;
    EXPECT_EQ(run_streams(2, gpus::one_each, options,
                          [&](const rank_session& session) {
                            channel_options end;
                            if (session.rank == 1) end.wait = wait_method::kernel;
                            return replay(session, kSlice, std::min(kKernelReplays, 10u), end);
                          }),
              0);
  }
}

channel_options by_kernels(executor_kind kind = executor_kind::peer) {
  channel_options out;
  out.executor = kind;
  out.wait = wait_method::kernel;
  return out;
}

TEST(graph, kernels_that_count) {
  for (const auto kind : {executor_kind::peer, executor_kind::dma})
    for (const std::size_t bytes : {std::size_t{100}, kSlice})
      EXPECT_EQ(
          run_streams(2, gpus::one_each, {},
                      [&](const rank_session& session) { return replay(session, bytes, kKernelReplays, by_kernels(kind)); }),
          0);
}

// The number before `unit` in a diag().
std::uint64_t count_in(const std::string& text, const std::string& begin, const std::string& unit) {
  const auto end = text.find(unit, text.find(begin));
  if (end == std::string::npos) return ~std::uint64_t{0};
  const auto before = text.find_last_of(' ', end - 1);
  return std::stoull(text.substr(before + 1));
}

// What the process does beside its GPU while graphs exchange: the thread of the ring wakes once in a quarter of it, the
// proxy thread by its tick, and neither once an exchange.
TEST(graph, both_threads_sleep_while_graphs_exchange) {
  context_options economy;
  economy.mode = run_mode::economy;
  const auto body = [](const rank_session& session) {
    constexpr unsigned kPairs = 80, kLaunches = std::min(kKernelReplays, 16u), kQuarter = 1024;  // of the ring
    two_ends ends;
    auto options = by_kernels(executor_kind::dma);
    options.releases_captured_waits = true;
    if (const int line = ends.open(session, options)) return line;
    captured graph;
    const auto pairs = [&]() -> int {
      for (unsigned i = 0; i < kPairs; ++i) {
        const auto put = [&] {
          return ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), 128);
        };
        if (session.rank == 0) CHECK_OK(put());
        CHECK_OK(ends.peer_channel->wait_signal(session.stream));
        if (session.rank == 1) CHECK_OK(put());
      }
      return 0;
    };
    CHECK(graph.make(session.stream, pairs) == 0);
    CHECK_OK(session.bootstrap->barrier());
    const auto counted = [&](const char* begin, const char* unit) { return count_in(session.streams->diag(), begin, unit); };
    const auto rounds = counted("refills", " rounds"), sleeps = counted("proxy thread", " sleeps");
    const auto begin_ns = monotonic_ns();
    for (unsigned i = 0; i < kLaunches; ++i) CHECK(cuda().cuGraphLaunch(graph.exec, session.stream) == 0);
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    const auto ticks = (monotonic_ns() - begin_ns) / 20'000'000 + 1;
    const auto ring_rounds = counted("refills", " rounds") - rounds, naps = counted("proxy thread", " sleeps") - sleeps;
    std::fprintf(
        stderr, "rank %d: %u exchanges in %llu ticks of 20 ms: %llu rounds of the ring's thread, %llu of the proxy thread\n",
        session.rank, kPairs * kLaunches, static_cast<unsigned long long>(ticks),
        static_cast<unsigned long long>(ring_rounds), static_cast<unsigned long long>(naps));
    CHECK(kPairs * kLaunches <= kQuarter || counted("refills", " by interrupts") > 0);
    CHECK(ring_rounds <= 2 * (kPairs * kLaunches / kQuarter + ticks) + 10);
    CHECK(naps <= 2 * ticks + 10);
    CHECK_OK(session.bootstrap->barrier());
    return graph.destroy();
  };
  EXPECT_EQ(run_streams(2, gpus::one_each, economy, body), 0);
}

std::atomic<unsigned> g_launches{0}, g_lists{0};
void count_nodes(cu::driver_table& table) {
  table.cuLaunchKernel = [](cu::function_t kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned block_y,
                            unsigned bz, unsigned shared, cu::stream_t stream, void** parameters, void** extra) {
    ++g_launches;
    return cuda().cuLaunchKernel(kernel, gx, gy, gz, bx, block_y, bz, shared, stream, parameters, extra);
  };
  table.cuStreamBatchMemOp_v2 = [](cu::stream_t stream, unsigned count, cu::mem_op_params* ops, unsigned flags) {
    ++g_lists;
    return cuda().cuStreamBatchMemOp_v2(stream, count, ops, flags);
  };
}

// No word is reset and nothing is released without a waiter: one node per operation. More operations than slots.
TEST(graph, a_counted_operation_is_one_node) {
  EXPECT_EQ(run_streams(
                2, gpus::one_each, {},
                [](const rank_session& session) {
                  two_ends ends;
                  auto options = by_kernels();
                  options.releases_captured_waits = true;
                  if (const int line = ends.open(session, options)) return line;
                  g_launches = g_lists = 0;
                  captured graph;
                  CHECK(graph.make(session.stream, [&]() -> int {
                    for (unsigned i = 0; i < kManyPairs; ++i) {
                      if (session.rank == 0)
                        CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0,
                                                               ends.send_buffer.pointer(), 64));
                      CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                      if (session.rank == 1)
                        CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0,
                                                               ends.send_buffer.pointer(), 64));
                    }
                    return 0;
                  }) == 0);
                  CHECK(g_launches == 2 * kManyPairs && g_lists == 0);
                  for (int i = 0; i < 3; ++i) CHECK(cuda().cuGraphLaunch(graph.exec, session.stream) == 0);
                  CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                  CHECK(ends.peer_channel->state().error == 0);
                  CHECK_OK(session.bootstrap->barrier());
                  return graph.destroy();
                },
                -1, count_nodes),
            0);
}

// Rank 0 may be one put ahead of what rank 1 has released, also from one launch to the next and for bytes that are copied.
TEST(graph, depth_holds_counted_puts_back) {
  const std::pair<executor_kind, std::size_t> cases[] = {
      {executor_kind::peer, 64}, {executor_kind::peer, 64 << 10}, {executor_kind::dma, 64}};
  for (const auto& [kind, bytes] : cases)
    EXPECT_EQ(run_streams(2, gpus::one_each, {},
                          [&, kind = kind, bytes = bytes](const rank_session& session) {
                            two_ends ends;
                            auto options = by_kernels(kind);
                            options.depth = 1;
                            if (const int line = ends.open(session, options)) return line;
                            captured put, wait, release;
                            if (session.rank == 0) {
                              CHECK(put.make(session.stream, [&]() -> int {
                                CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0,
                                                                       ends.send_buffer.pointer(), bytes));
                                return 0;
                              }) == 0);
                              for (int i = 0; i < 3; ++i) CHECK(cuda().cuGraphLaunch(put.exec, session.stream) == 0);
                              CHECK_OK(session.bootstrap->barrier());
                              CHECK(cuda().cuStreamQuery(session.stream) == cu::error_code::not_ready);
                              CHECK_OK(session.bootstrap->barrier());
                              CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                              CHECK_OK(session.bootstrap->barrier());
                              return put.destroy();
                            }
                            std::uint64_t number = 0;
                            CHECK(wait.make(session.stream, [&]() -> int {
                              const auto queued = ends.peer_channel->wait_signal(session.stream);
                              CHECK_OK(queued);
                              number = *queued;
                              return 0;
                            }) == 0);
                            CHECK(release.make(session.stream, [&]() -> int {
                              CHECK_OK(ends.peer_channel->release(session.stream, number));
                              return 0;
                            }) == 0);
                            CHECK(cuda().cuGraphLaunch(wait.exec, session.stream) == 0);
                            CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                            CHECK_OK(session.bootstrap->barrier());
                            CHECK_OK(session.bootstrap->barrier());
                            for (int i = 0; i < 3; ++i) {
                              if (i != 0) CHECK(cuda().cuGraphLaunch(wait.exec, session.stream) == 0);
                              CHECK(cuda().cuGraphLaunch(release.exec, session.stream) == 0);
                            }
                            CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                            CHECK_OK(session.bootstrap->barrier());
                            CHECK(wait.destroy() == 0);
                            return release.destroy();
                          }),
              0);
}

TEST(graph, counted_waits_and_puts_are_let_go_after_their_time) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const rank_session& session) {
                          two_ends ends;
                          auto options = by_kernels();
                          options.depth = 1;
                          options.wait_timeout = session.rank == 0 ? 50ms : 0ms;
                          if (const int line = ends.open(session, options)) return line;
                          captured graph;
                          CHECK(graph.make(session.stream, [&]() -> int {
                            if (session.rank == 1) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                            else CHECK_OK(ends.peer_channel->signal(session.stream));
                            return 0;
                          }) == 0);
                          // Rank 1 gets the first and waits for a third; nobody releases the first of rank 0.
                          for (int i = 0; i < 3; ++i) CHECK(cuda().cuGraphLaunch(graph.exec, session.stream) == 0);
                          CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                          while (ends.peer_channel->state().error == 0) sched_yield();
                          const auto now = ends.peer_channel->state();
                          CHECK(now.error == (session.rank == 0 ? ETIMEDOUT : EPIPE));
                          if (session.rank == 0)
                            CHECK(now.reason.find("captured put 2 of those launched") != std::string::npos);
                          CHECK_OK(session.bootstrap->barrier());
                          return graph.destroy();
                        }),
            0);
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const rank_session& session) {
                          two_ends ends;
                          auto options = by_kernels();
                          options.wait_timeout = session.rank == 0 ? 50ms : 0ms;
                          if (const int line = ends.open(session, options)) return line;
                          captured graph;
                          CHECK(graph.make(session.stream, [&]() -> int {
                            CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                            return 0;
                          }) == 0);
                          CHECK(cuda().cuGraphLaunch(graph.exec, session.stream) == 0);
                          CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                          while (ends.peer_channel->state().error == 0) sched_yield();
                          CHECK(ends.peer_channel->state().error == (session.rank == 0 ? ETIMEDOUT : EPIPE));
                          CHECK_OK(session.bootstrap->barrier());
                          return graph.destroy();
                        }),
            0);
}

// Kernels that poll on a GPU that several ranks use would take turns by the millisecond.
TEST(graph, ranks_that_share_a_gpu_wait_by_the_front_end_whatever_was_asked_for) {
  EXPECT_EQ(run_streams(
                2, gpus::shared, {},
                [](const rank_session& session) {
                  two_ends ends;
                  if (const int line = ends.open(session, by_kernels())) return line;
                  g_launches = 0;
                  if (session.rank == 0) CHECK_OK(ends.peer_channel->signal(session.stream));
                  CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                  if (session.rank == 1) CHECK_OK(ends.peer_channel->signal(session.stream));
                  CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                  CHECK(g_launches == 0);
                  CHECK(ends.peer_channel->diag().find("the front end waits, not a kernel: rank " +
                                                       std::to_string(1 - session.rank) + " uses this GPU too") !=
                        std::string::npos);
                  CHECK_OK(session.bootstrap->barrier());
                  return 0;
                },
                -1, count_nodes),
            0);
}

TEST_P(graphs, cancel_lets_a_stuck_replay_go) {
  EXPECT_EQ(run([kind = kind()](const rank_session& session) {
              two_ends ends;
              if (const int line = ends.open(session, options_for(kind))) return line;
              const test::device_buffer used{kExchanges * kSlice};
              captured graph;
              if (const int line = graph.make(session.stream, [&] { return exchanges(session, ends, used, 64); }))
                return line;
              CHECK_OK(session.bootstrap->barrier());
              if (session.rank == 0) {  // its peer launches nothing
                CHECK(cuda().cuGraphLaunch(graph.exec, session.stream) == 0);
                CHECK(cuda().cuGraphLaunch(graph.exec, session.stream) == 0);
                CHECK(ends.peer_channel->diag().find("in graphs: 4 puts, 4 waits") != std::string::npos);
                ends.peer_channel->cancel(ECANCELED);
                CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
              }
              CHECK_OK(session.bootstrap->barrier());
              return graph.destroy();
            }),
            0);
}

TEST_P(graphs, a_stuck_replay_is_let_go_after_its_time_and_a_slow_one_is_not) {
  EXPECT_EQ(run([kind = kind()](const rank_session& session) {
              two_ends ends;
              auto options = options_for(kind);
              if (session.rank == 0) options.wait_timeout = 500ms;
              if (const int line = ends.open(session, options)) return line;
              const test::device_buffer used{kExchanges * kSlice};
              captured graph;
              if (const int line = graph.make(session.stream, [&] { return exchanges(session, ends, used, 64); }))
                return line;
              CHECK_OK(session.bootstrap->barrier());
              for (int i = 0; i < 3; ++i) CHECK(cuda().cuGraphLaunch(graph.exec, session.stream) == 0);
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
              CHECK(ends.peer_channel->state().error == 0);
              CHECK_OK(session.bootstrap->barrier());
              if (session.rank == 0) {
                CHECK(cuda().cuGraphLaunch(graph.exec, session.stream) == 0);
                CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                CHECK(ends.peer_channel->state().error == ETIMEDOUT);
                CHECK(ends.peer_channel->state().reason.find("captured wait 1 for 500 ms") != std::string::npos);
              }
              CHECK_OK(session.bootstrap->barrier());
              return graph.destroy();
            }),
            0);
}

TEST_P(graphs, slots_are_used_again_once_their_graph_is_destroyed) {
  EXPECT_EQ(run([kind = kind()](const rank_session& session) {
              two_ends ends;
              auto options = options_for(kind);
              options.releases_captured_waits = true;
              if (const int line = ends.open(session, options)) return line;
              auto& channel_end = *ends.peer_channel;
              const auto all_slots = [&]() -> int {
                for (unsigned i = 0; i < kGraphSlots; ++i) {
                  if (session.rank == 0) CHECK_OK(channel_end.signal(session.stream));
                  else CHECK_OK(channel_end.wait_signal(session.stream));
                }
                return 0;
              };
              captured first, full, second;
              if (const int line = first.make(session.stream, all_slots)) return line;
              const auto is_full = [&]() -> int {
                const auto code = session.rank == 0 ? channel_end.signal(session.stream).code()
                                                    : channel_end.wait_signal(session.stream).code();
                CHECK(code == ENOSPC);
                return 0;
              };
              if (const int line = full.make(session.stream, is_full)) return line;
              CHECK(full.destroy() == 0);
              CHECK(cuda().cuGraphLaunch(first.exec, session.stream) == 0);
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
              CHECK(first.destroy() == 0);
              while (channel_end.diag().find("in graphs") != std::string::npos) sched_yield();  // a thread of the driver's
              if (const int line = second.make(session.stream, all_slots)) return line;
              for (int i = 0; i < 3; ++i) CHECK(cuda().cuGraphLaunch(second.exec, session.stream) == 0);
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
              CHECK(channel_end.state().error == 0);
              CHECK_OK(session.bootstrap->barrier());
              return second.destroy();
            }),
            0);
}

TEST(graph, refuses_what_cannot_be_meant) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const rank_session& session) {
                          two_ends ends;
                          if (const int line = ends.open(session)) return line;
                          auto& channel_end = *ends.peer_channel;
                          captured graph, other;
                          CHECK(graph.make(session.stream, [&]() -> int {
                            CHECK(channel_end.wait_signal(session.stream, 3).code() == EINVAL);
                            CHECK(channel_end.release(session.stream, 1).code() == EINVAL);
                            CHECK_OK(channel_end.wait_signal(session.stream));
                            CHECK_OK(channel_end.release(session.stream, 1));
                            CHECK(channel_end.release(session.stream, 1).code() == EINVAL);
                            CHECK_OK(channel_end.wait_signal(session.stream));
                            return 0;
                          }) == 0);
                          CHECK(other.make(session.stream, [&]() -> int {
                            CHECK(channel_end.release(session.stream, 2).code() == EINVAL);
                            return 0;
                          }) == 0);
                          CHECK(channel_end.diag().find("captured wait 2 has no release") != std::string::npos);
                          CHECK(graph.destroy() == 0 && other.destroy() == 0);
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

TEST(graph, an_old_driver_is_told_apart) {
  EXPECT_EQ(run_streams(
                2, gpus::one_each, {},
                [](const rank_session& session) {
                  two_ends ends;
                  if (const int line = ends.open(session)) return line;
                  captured graph;
                  CHECK(graph.make(session.stream, [&]() -> int {
                    const auto refused = ends.peer_channel->signal(session.stream);
                    CHECK(refused.code() == ENOTSUP && refused.error().message.find("CUDA 12.3") != std::string::npos);
                    return 0;
                  }) == 0);
                  CHECK_OK(session.bootstrap->barrier());
                  return graph.destroy();
                },
                -1, [](cu::driver_table& table) { table.cuStreamGetCaptureInfo_v3 = nullptr; }),
            0);
}

}  // namespace
}  // namespace pl::triggered
