// SPDX-License-Identifier: Apache-2.0
// Puts, waits and releases inside CUDA graphs.
#include <algorithm>
#include <atomic>

#include "test/triggered/ends.hpp"
#include "triggered/channel.hpp"

namespace pl::stream {
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
  int make(cu::stream_t on, const std::function<int()>& body) {
    CHECK(cuda().cuStreamBeginCapture_v2(on, cu::capture_mode::thread_local_only) == 0);
    if (const int line = body()) return line;
    CHECK(cuda().cuStreamEndCapture(on, &graph) == 0);
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
int exchanges(const scene& at, two_ends& ends, const test::device_buffer& used, std::size_t bytes) {
  for (unsigned i = 0; i < kExchanges; ++i) {
    const auto put = [&]() -> int {
      CHECK_OK(ends.to->put_signal(at.on, ends.there, i * kSlice, ends.out.pointer() + i * kSlice, bytes));
      return 0;
    };
    if (at.rank == 0)
      if (const int line = put()) return line;
    const auto number = ends.to->wait_signal(at.on);
    CHECK_OK(number);
    if (at.rank == 1)
      if (const int line = put()) return line;
    CHECK(cuda().cuMemcpyDtoDAsync_v2(used.pointer() + i * kSlice, ends.in.pointer() + i * kSlice, bytes, at.on) == 0);
    CHECK_OK(ends.to->release(at.on, *number));
  }
  return 0;
}

int replay(const scene& at, std::size_t bytes, unsigned launches, const channel_options& options) {
  two_ends ends;
  if (const int line = ends.open(at, options)) return line;
  const test::device_buffer used{kExchanges * kSlice};
  captured it;
  if (const int line = it.make(at.on, [&] { return exchanges(at, ends, used, bytes); })) return line;
  for (unsigned round = 0; round < launches; ++round) {
    const auto seed = [&](int rank, unsigned i) { return (round * 2 + static_cast<unsigned>(rank)) * kExchanges + i; };
    for (unsigned i = 0; i < kExchanges; ++i)
      test::set_device_bytes(ends.out.pointer() + i * kSlice, test::random_bytes(bytes, seed(at.rank, i)));
    CHECK(cuda().cuGraphLaunch(it.exec, at.on) == 0);
    CHECK(cuda().cuStreamSynchronize(at.on) == 0);
    for (unsigned i = 0; i < kExchanges; ++i)
      CHECK(test::device_bytes(used.pointer() + i * kSlice, bytes) == test::random_bytes(bytes, seed(1 - at.rank, i)));
  }
  CHECK(ends.to->state().error == 0 && ends.to->state().puts == 0);
  CHECK_OK(at.with->barrier());
  return it.destroy();
}

TEST(graph, a_captured_ping_pong_is_replayed) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {}, [](const scene& at) { return replay(at, 100, 50, {}); }), 0);
}

TEST(graph, and_by_every_way_to_write_a_flag) {
  for (const auto writer : {writer_choice::direct, writer_choice::copied, writer_choice::kernel}) {
    context_options options;
    options.writer = writer;
    EXPECT_EQ(run_streams(2, gpus::one_each, options,
                          [&](const scene& at) {
                            channel_options end;
                            if (at.rank == 1) end.wait = wait_way::kernel;
                            return replay(at, kSlice, std::min(kKernelReplays, 10u), end);
                          }),
              0);
  }
}

channel_options by_kernels() {
  channel_options out;
  out.wait = wait_way::kernel;
  return out;
}

TEST(graph, kernels_that_count) {
  for (const std::size_t bytes : {std::size_t{100}, kSlice})
    EXPECT_EQ(
        run_streams(2, gpus::one_each, {}, [&](const scene& at) { return replay(at, bytes, kKernelReplays, by_kernels()); }),
        0);
}

std::atomic<unsigned> g_launches{0}, g_lists{0};
void count_nodes(cu::driver_table& table) {
  table.cuLaunchKernel = [](cu::function_t what, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared, cu::stream_t on, void** parameters, void** extra) {
    ++g_launches;
    return cuda().cuLaunchKernel(what, gx, gy, gz, bx, by, bz, shared, on, parameters, extra);
  };
  table.cuStreamBatchMemOp_v2 = [](cu::stream_t on, unsigned count, cu::mem_op_params* ops, unsigned flags) {
    ++g_lists;
    return cuda().cuStreamBatchMemOp_v2(on, count, ops, flags);
  };
}

// Nothing is set back and nothing is released that nobody waits for: one node each. More than there are slots.
TEST(graph, a_counted_operation_is_one_node) {
  EXPECT_EQ(run_streams(
                2, gpus::one_each, {},
                [](const scene& at) {
                  two_ends ends;
                  auto options = by_kernels();
                  options.releases_captured_waits = true;
                  if (const int line = ends.open(at, options)) return line;
                  g_launches = g_lists = 0;
                  captured it;
                  CHECK(it.make(at.on, [&]() -> int {
                    for (unsigned i = 0; i < kManyPairs; ++i) {
                      if (at.rank == 0) CHECK_OK(ends.to->put_signal(at.on, ends.there, 0, ends.out.pointer(), 64));
                      CHECK_OK(ends.to->wait_signal(at.on));
                      if (at.rank == 1) CHECK_OK(ends.to->put_signal(at.on, ends.there, 0, ends.out.pointer(), 64));
                    }
                    return 0;
                  }) == 0);
                  CHECK(g_launches == 2 * kManyPairs && g_lists == 0);
                  for (int i = 0; i < 3; ++i) CHECK(cuda().cuGraphLaunch(it.exec, at.on) == 0);
                  CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                  CHECK(ends.to->state().error == 0);
                  CHECK_OK(at.with->barrier());
                  return it.destroy();
                },
                -1, count_nodes),
            0);
}

// Rank 0 may be one put ahead of what rank 1 has released, also from one launch to the next and for bytes that are copied.
TEST(graph, depth_holds_counted_puts_back) {
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{64 << 10}})
    EXPECT_EQ(run_streams(2, gpus::one_each, {},
                          [&](const scene& at) {
                            two_ends ends;
                            auto options = by_kernels();
                            options.depth = 1;
                            if (const int line = ends.open(at, options)) return line;
                            captured put, wait, release;
                            if (at.rank == 0) {
                              CHECK(put.make(at.on, [&]() -> int {
                                CHECK_OK(ends.to->put_signal(at.on, ends.there, 0, ends.out.pointer(), bytes));
                                return 0;
                              }) == 0);
                              for (int i = 0; i < 3; ++i) CHECK(cuda().cuGraphLaunch(put.exec, at.on) == 0);
                              CHECK_OK(at.with->barrier());
                              CHECK(cuda().cuStreamQuery(at.on) == cu::error_code::not_ready);
                              CHECK_OK(at.with->barrier());
                              CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                              CHECK_OK(at.with->barrier());
                              return put.destroy();
                            }
                            std::uint64_t number = 0;
                            CHECK(wait.make(at.on, [&]() -> int {
                              const auto queued = ends.to->wait_signal(at.on);
                              CHECK_OK(queued);
                              number = *queued;
                              return 0;
                            }) == 0);
                            CHECK(release.make(at.on, [&]() -> int {
                              CHECK_OK(ends.to->release(at.on, number));
                              return 0;
                            }) == 0);
                            CHECK(cuda().cuGraphLaunch(wait.exec, at.on) == 0);
                            CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                            CHECK_OK(at.with->barrier());
                            CHECK_OK(at.with->barrier());
                            for (int i = 0; i < 3; ++i) {
                              if (i != 0) CHECK(cuda().cuGraphLaunch(wait.exec, at.on) == 0);
                              CHECK(cuda().cuGraphLaunch(release.exec, at.on) == 0);
                            }
                            CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                            CHECK_OK(at.with->barrier());
                            CHECK(wait.destroy() == 0);
                            return release.destroy();
                          }),
              0);
}

TEST(graph, counted_waits_and_puts_are_let_go_after_their_time) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          auto options = by_kernels();
                          options.depth = 1;
                          options.wait_timeout = at.rank == 0 ? 50ms : 0ms;
                          if (const int line = ends.open(at, options)) return line;
                          captured it;
                          CHECK(it.make(at.on, [&]() -> int {
                            if (at.rank == 1) CHECK_OK(ends.to->wait_signal(at.on));
                            else CHECK_OK(ends.to->signal(at.on));
                            return 0;
                          }) == 0);
                          // Rank 1 gets the first and waits for a third; rank 0 has nobody who releases the first.
                          for (int i = 0; i < 3; ++i) CHECK(cuda().cuGraphLaunch(it.exec, at.on) == 0);
                          CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          while (ends.to->state().error == 0) sched_yield();
                          const auto now = ends.to->state();
                          CHECK(now.error == (at.rank == 0 ? ETIMEDOUT : EPIPE));
                          if (at.rank == 0) CHECK(now.why.find("captured put 2 of those launched") != std::string::npos);
                          CHECK_OK(at.with->barrier());
                          return it.destroy();
                        }),
            0);
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          auto options = by_kernels();
                          options.wait_timeout = at.rank == 0 ? 50ms : 0ms;
                          if (const int line = ends.open(at, options)) return line;
                          captured it;
                          CHECK(it.make(at.on, [&]() -> int {
                            CHECK_OK(ends.to->wait_signal(at.on));
                            return 0;
                          }) == 0);
                          CHECK(cuda().cuGraphLaunch(it.exec, at.on) == 0);
                          CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          while (ends.to->state().error == 0) sched_yield();
                          CHECK(ends.to->state().error == (at.rank == 0 ? ETIMEDOUT : EPIPE));
                          CHECK_OK(at.with->barrier());
                          return it.destroy();
                        }),
            0);
}

// Kernels that poll on a GPU that several ranks use would take turns by the millisecond.
TEST(graph, ranks_that_share_a_gpu_wait_by_the_front_end_whatever_was_asked_for) {
  EXPECT_EQ(run_streams(
                2, gpus::shared, {},
                [](const scene& at) {
                  two_ends ends;
                  if (const int line = ends.open(at, by_kernels())) return line;
                  g_launches = 0;
                  if (at.rank == 0) CHECK_OK(ends.to->signal(at.on));
                  CHECK_OK(ends.to->wait_signal(at.on));
                  if (at.rank == 1) CHECK_OK(ends.to->signal(at.on));
                  CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                  CHECK(g_launches == 0);
                  CHECK(ends.to->diag().find("the front end waits, not a kernel: rank " + std::to_string(1 - at.rank) +
                                             " uses this GPU too") != std::string::npos);
                  CHECK_OK(at.with->barrier());
                  return 0;
                },
                -1, count_nodes),
            0);
}

TEST(graph, cancel_lets_a_stuck_replay_go) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          if (const int line = ends.open(at)) return line;
                          const test::device_buffer used{kExchanges * kSlice};
                          captured it;
                          if (const int line = it.make(at.on, [&] { return exchanges(at, ends, used, 64); })) return line;
                          CHECK_OK(at.with->barrier());
                          if (at.rank == 0) {  // its peer launches nothing
                            CHECK(cuda().cuGraphLaunch(it.exec, at.on) == 0);
                            CHECK(cuda().cuGraphLaunch(it.exec, at.on) == 0);
                            CHECK(ends.to->diag().find("in graphs: 4 puts, 4 waits") != std::string::npos);
                            ends.to->cancel(ECANCELED);
                            CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          }
                          CHECK_OK(at.with->barrier());
                          return it.destroy();
                        }),
            0);
}

TEST(graph, a_stuck_replay_is_let_go_after_its_time_and_a_slow_one_is_not) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          channel_options options;
                          if (at.rank == 0) options.wait_timeout = 500ms;
                          if (const int line = ends.open(at, options)) return line;
                          const test::device_buffer used{kExchanges * kSlice};
                          captured it;
                          if (const int line = it.make(at.on, [&] { return exchanges(at, ends, used, 64); })) return line;
                          CHECK_OK(at.with->barrier());
                          for (int i = 0; i < 3; ++i) CHECK(cuda().cuGraphLaunch(it.exec, at.on) == 0);
                          CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          CHECK(ends.to->state().error == 0);
                          CHECK_OK(at.with->barrier());
                          if (at.rank == 0) {
                            CHECK(cuda().cuGraphLaunch(it.exec, at.on) == 0);
                            CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                            CHECK(ends.to->state().error == ETIMEDOUT);
                            CHECK(ends.to->state().why.find("captured wait 1 for 500 ms") != std::string::npos);
                          }
                          CHECK_OK(at.with->barrier());
                          return it.destroy();
                        }),
            0);
}

TEST(graph, slots_are_used_again_once_their_graph_is_destroyed) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          channel_options options;
                          options.releases_captured_waits = true;
                          if (const int line = ends.open(at, options)) return line;
                          auto& to = *ends.to;
                          const auto all_slots = [&]() -> int {
                            for (unsigned i = 0; i < kGraphSlots; ++i) {
                              if (at.rank == 0) CHECK_OK(to.signal(at.on));
                              else CHECK_OK(to.wait_signal(at.on));
                            }
                            return 0;
                          };
                          captured first, full, second;
                          if (const int line = first.make(at.on, all_slots)) return line;
                          const auto is_full = [&]() -> int {
                            const auto code = at.rank == 0 ? to.signal(at.on).code() : to.wait_signal(at.on).code();
                            CHECK(code == ENOSPC);
                            return 0;
                          };
                          if (const int line = full.make(at.on, is_full)) return line;
                          CHECK(full.destroy() == 0);
                          CHECK(cuda().cuGraphLaunch(first.exec, at.on) == 0);
                          CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          CHECK(first.destroy() == 0);
                          while (to.diag().find("in graphs") != std::string::npos)
                            sched_yield();  // a thread of the driver's
                          if (const int line = second.make(at.on, all_slots)) return line;
                          for (int i = 0; i < 3; ++i) CHECK(cuda().cuGraphLaunch(second.exec, at.on) == 0);
                          CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          CHECK(to.state().error == 0);
                          CHECK_OK(at.with->barrier());
                          return second.destroy();
                        }),
            0);
}

TEST(graph, refuses_what_cannot_be_meant) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          if (const int line = ends.open(at)) return line;
                          auto& to = *ends.to;
                          captured it, other;
                          CHECK(it.make(at.on, [&]() -> int {
                            CHECK(to.wait_signal(at.on, 3).code() == EINVAL);
                            CHECK(to.release(at.on, 1).code() == EINVAL);
                            CHECK_OK(to.wait_signal(at.on));
                            CHECK_OK(to.release(at.on, 1));
                            CHECK(to.release(at.on, 1).code() == EINVAL);
                            CHECK_OK(to.wait_signal(at.on));
                            return 0;
                          }) == 0);
                          CHECK(other.make(at.on, [&]() -> int {
                            CHECK(to.release(at.on, 2).code() == EINVAL);
                            return 0;
                          }) == 0);
                          CHECK(to.diag().find("captured wait 2 has no release") != std::string::npos);
                          CHECK(it.destroy() == 0 && other.destroy() == 0);
                          CHECK_OK(at.with->barrier());
                          return 0;
                        }),
            0);
}

TEST(graph, an_old_driver_is_told_apart) {
  EXPECT_EQ(run_streams(
                2, gpus::one_each, {},
                [](const scene& at) {
                  two_ends ends;
                  if (const int line = ends.open(at)) return line;
                  captured it;
                  CHECK(it.make(at.on, [&]() -> int {
                    const auto refused = ends.to->signal(at.on);
                    CHECK(refused.code() == ENOTSUP && refused.error().message.find("CUDA 12.3") != std::string::npos);
                    return 0;
                  }) == 0);
                  CHECK_OK(at.with->barrier());
                  return it.destroy();
                },
                -1, [](cu::driver_table& table) { table.cuStreamGetCaptureInfo_v3 = nullptr; }),
            0);
}

}  // namespace
}  // namespace pl::stream
