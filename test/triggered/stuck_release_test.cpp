// SPDX-License-Identifier: Apache-2.0
// Stuck streams where the CPU cannot write GPU memory: a stream made beforehand releases them.
#include "triggered/stuck_release.hpp"

#include "test/triggered/ends.hpp"

namespace pl::triggered {
namespace {

// gdrdrv is a kernel module, which the simulated GPU has none of.
struct unmapped : testing::Test {
  const with_variable set{"PEERLANE_BACKEND", "gdrdrv"};
};

TEST_F(unmapped, a_stuck_wait_is_released_after_its_timeout) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const rank_session& session) {
                          CHECK(!session.streams->query().has_cpu_mapping && session.streams->query().can_release);
                          two_ends ends;
                          channel_options options;
                          if (session.rank == 0) options.wait_timeout = 300ms;
                          if (const int line = ends.open(session, options)) return line;
                          // The stream itself shows whether it is stuck.
                          CHECK_OK(ends.peer_channel->signal(session.stream));
                          CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                          CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                          CHECK(ends.peer_channel->state().passed == 1 && ends.peer_channel->state().error == 0);
                          CHECK(ends.peer_channel->arrived(1).code() == ENOTSUP);
                          CHECK_OK(session.bootstrap->barrier());
                          if (session.rank == 1) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                          CHECK_OK(session.bootstrap->barrier());
                          if (session.rank == 0) CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                          CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                          CHECK(ends.peer_channel->state().error == (session.rank == 0 ? ETIMEDOUT : EPIPE));
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

TEST_F(unmapped, closing_lets_go_of_a_wait_in_which_a_stream_stands) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const rank_session& session) {
                          two_ends ends;
                          if (const int line = ends.open(session)) return line;
                          if (session.rank == 0) {
                            CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                            while (ends.peer_channel->state().reached == 0) sched_yield();
                            ends.peer_channel.reset();
                            CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                          }
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

TEST_F(unmapped, also_in_a_graph) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const rank_session& session) {
                          two_ends ends;
                          channel_options options;
                          options.wait_timeout = 50ms;
                          if (const int line = ends.open(session, options)) return line;
                          cu::graph_t graph = nullptr;
                          cu::graph_exec_t exec = nullptr;
                          CHECK(cuda().cuStreamBeginCapture_v2(session.stream, cu::capture_mode::thread_local_only) == 0);
                          for (int i = 0; i < 3; ++i) {
                            const auto number = ends.peer_channel->wait_signal(session.stream);
                            CHECK_OK(number);
                            CHECK_OK(ends.peer_channel->release(session.stream, *number));
                          }
                          CHECK(cuda().cuStreamEndCapture(session.stream, &graph) == 0);
                          CHECK(cuda().cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
                          CHECK_OK(session.bootstrap->barrier());
                          if (session.rank == 0) {
                            CHECK(cuda().cuGraphLaunch(exec, session.stream) == 0);
                            CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                            CHECK(ends.peer_channel->state().error == ETIMEDOUT);
                          }
                          CHECK_OK(session.bootstrap->barrier());
                          CHECK(cuda().cuGraphExecDestroy(exec) == 0 && cuda().cuGraphDestroy(graph) == 0);
                          return 0;
                        }),
            0);
}

TEST_F(unmapped, without_such_a_stream_there_are_no_time_outs) {
  EXPECT_EQ(run_streams(
                2, gpus::one_each, {},
                [](const rank_session& session) -> int {
                  CHECK(!session.streams->query().can_release);
                  auto end = session.streams->connect(1 - session.rank, 3);
                  CHECK_OK(end);
                  const auto refused = (*end)->ready(kTimeout);
                  CHECK(refused.code() == ENOTSUP);
                  CHECK(refused.error().message.find("set wait_timeout to 0") != std::string::npos);
                  CHECK_OK(session.bootstrap->barrier());
                  two_ends ends;
                  channel_options options;
                  options.wait_timeout = 0ms;
                  if (const int line = ends.open(session, options)) return line;
                  CHECK_OK(ends.peer_channel->signal(session.stream));
                  CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                  CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                  CHECK_OK(session.bootstrap->barrier());
                  return 0;
                },
                -1, [](cu::driver_table& t) { t.cuStreamCreateWithPriority = nullptr; }),
            0);
}

}  // namespace
}  // namespace pl::triggered
