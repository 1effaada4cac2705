// SPDX-License-Identifier: Apache-2.0
// Stuck streams where the CPU cannot write GPU memory: a stream made beforehand lets them go.
#include "triggered/stuck_release.hpp"

#include "test/triggered/ends.hpp"

namespace pl::stream {
namespace {

// gdrdrv is a kernel module, which the simulated GPU has none of.
struct unmapped : testing::Test {
  const with_variable set{"PEERLANE_BACKEND", "gdrdrv"};
};

TEST_F(unmapped, a_stuck_wait_is_let_go_after_its_time) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          CHECK(!at.by->query().has_cpu_mapping && at.by->query().can_release);
                          two_ends ends;
                          channel_options options;
                          if (at.rank == 0) options.wait_timeout = 300ms;
                          if (const int line = ends.open(at, options)) return line;
                          // What is not stuck is told apart by the stream itself.
                          CHECK_OK(ends.to->signal(at.on));
                          CHECK_OK(ends.to->wait_signal(at.on));
                          CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          CHECK(ends.to->state().passed == 1 && ends.to->state().error == 0);
                          CHECK(ends.to->arrived(1).code() == ENOTSUP);
                          CHECK_OK(at.with->barrier());
                          if (at.rank == 1) CHECK_OK(ends.to->wait_signal(at.on));
                          CHECK_OK(at.with->barrier());
                          if (at.rank == 0) CHECK_OK(ends.to->wait_signal(at.on));
                          CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          CHECK(ends.to->state().error == (at.rank == 0 ? ETIMEDOUT : EPIPE));
                          CHECK_OK(at.with->barrier());
                          return 0;
                        }),
            0);
}

TEST_F(unmapped, closing_lets_go_of_a_wait_in_which_a_stream_stands) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          if (const int line = ends.open(at)) return line;
                          if (at.rank == 0) {
                            CHECK_OK(ends.to->wait_signal(at.on));
                            while (ends.to->state().reached == 0) sched_yield();
                            ends.to.reset();
                            CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                          }
                          CHECK_OK(at.with->barrier());
                          return 0;
                        }),
            0);
}

TEST_F(unmapped, also_in_a_graph) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const scene& at) {
                          two_ends ends;
                          channel_options options;
                          options.wait_timeout = 50ms;
                          if (const int line = ends.open(at, options)) return line;
                          cu::graph_t graph = nullptr;
                          cu::graph_exec_t exec = nullptr;
                          CHECK(cuda().cuStreamBeginCapture_v2(at.on, cu::capture_mode::thread_local_only) == 0);
                          for (int i = 0; i < 3; ++i) {
                            const auto number = ends.to->wait_signal(at.on);
                            CHECK_OK(number);
                            CHECK_OK(ends.to->release(at.on, *number));
                          }
                          CHECK(cuda().cuStreamEndCapture(at.on, &graph) == 0);
                          CHECK(cuda().cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
                          CHECK_OK(at.with->barrier());
                          if (at.rank == 0) {
                            CHECK(cuda().cuGraphLaunch(exec, at.on) == 0);
                            CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                            CHECK(ends.to->state().error == ETIMEDOUT);
                          }
                          CHECK_OK(at.with->barrier());
                          CHECK(cuda().cuGraphExecDestroy(exec) == 0 && cuda().cuGraphDestroy(graph) == 0);
                          return 0;
                        }),
            0);
}

TEST_F(unmapped, without_such_a_stream_there_are_no_time_outs) {
  EXPECT_EQ(run_streams(
                2, gpus::one_each, {},
                [](const scene& at) -> int {
                  CHECK(!at.by->query().can_release);
                  auto end = at.by->connect(1 - at.rank, 3);
                  CHECK_OK(end);
                  const auto refused = (*end)->ready(kPatience);
                  CHECK(refused.code() == ENOTSUP);
                  CHECK(refused.error().message.find("set wait_timeout to 0") != std::string::npos);
                  CHECK_OK(at.with->barrier());
                  two_ends ends;
                  channel_options options;
                  options.wait_timeout = 0ms;
                  if (const int line = ends.open(at, options)) return line;
                  CHECK_OK(ends.to->signal(at.on));
                  CHECK_OK(ends.to->wait_signal(at.on));
                  CHECK(cuda().cuStreamSynchronize(at.on) == 0);
                  CHECK_OK(at.with->barrier());
                  return 0;
                },
                -1, [](cu::driver_table& t) { t.cuStreamCreateWithPriority = nullptr; }),
            0);
}

}  // namespace
}  // namespace pl::stream
