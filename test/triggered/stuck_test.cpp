// SPDX-License-Identifier: Apache-2.0
// The ten ways to deadlock of docs/async.md, by its numbers; what diag() says there is what it says here.
#include <dlfcn.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "test/triggered/ends.hpp"

namespace pl::triggered {
namespace {

unsigned long long queue_waits() {
  static const auto ask = reinterpret_cast<unsigned long long (*)()>(dlsym(cuda().library, "peerlaneSimQueueWaits"));
  return ask();
}

cu::stream_t new_stream() {
  cu::stream_t stream = nullptr;
  if (cuda().cuStreamCreate(&stream, cu::stream_flag::non_blocking) != 0) abort();  // in a child: EXPECT would not be heard
  return stream;
}

bool is_idle(cu::stream_t stream) { return cuda().cuStreamQuery(stream) == cu::error_code::success; }

// Waits until the channel says `text`, and whether the page says so too.
bool says(const channel& channel_end, const std::string& text) {
  while (channel_end.diag().find(text) == std::string::npos) sched_yield();
  std::ifstream file(PEERLANE_ASYNC_PAGE);
  std::stringstream page;
  page << file.rdbuf();
  return page.str().find(text) != std::string::npos;
}

int in_two(const std::function<int(const rank_session&, two_ends&)>& body, const channel_options& options = {},
           const std::function<void(cu::driver_table&)>& change = {}) {
  return run_streams(
      2, gpus::one_each, {},
      [&](const rank_session& session) {
        two_ends ends;
        if (const int line = ends.open(session, options)) return line;
        if (const int line = body(session, ends)) return line;
        CHECK_OK(session.bootstrap->barrier());
        return 0;
      },
      -1, change);
}

// Queued, or too late: the time was over here or at the peer.
template <class T>
bool is_queued(const T& outcome) {
  return outcome.ok() || outcome.code() == ETIMEDOUT || outcome.code() == EPIPE;
}

channel_options short_of_time() {
  channel_options out;
  out.wait_timeout = 50ms;
  return out;
}

TEST(stuck, case_1_a_wait_before_its_producer_in_one_hardware_queue) {
  const with_variable set("PEERLANE_SIM_QUEUES", "1");
  EXPECT_EQ(in_two([](const rank_session& session, two_ends& ends) -> int {
              auto* const other = new_stream();
              if (session.rank == 0) {
                CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                CHECK_OK(ends.peer_channel->signal(other));  // the peer's answer needs it
                CHECK(says(*ends.peer_channel, "  a stream is in wait 1 for put 1; 0 puts of the peer have arrived\n"));
                CHECK(ends.peer_channel->state().sent == 0);
              } else {
                CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                CHECK_OK(ends.peer_channel->signal(other));
              }
              CHECK_OK(session.bootstrap->barrier());
              ends.peer_channel->cancel(ECANCELED);
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0 && cuda().cuStreamSynchronize(other) == 0);
              return 0;
            }),
            0);
  // The right order.
  EXPECT_EQ(in_two([](const rank_session& session, two_ends& ends) -> int {
              auto* const other = new_stream();
              CHECK_OK(ends.peer_channel->signal(other));
              CHECK_OK(ends.peer_channel->wait_signal(session.stream));
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
              return 0;
            }),
            0);
}

TEST(stuck, case_1_and_the_time_out_tells) {
  const with_variable set("PEERLANE_SIM_QUEUES", "1");
  EXPECT_EQ(in_two(
                [](const rank_session& session, two_ends& ends) -> int {
                  auto* const other = new_stream();
                  CHECK(is_queued(ends.peer_channel->wait_signal(session.stream)));
                  CHECK(is_queued(ends.peer_channel->signal(other)));
                  CHECK(cuda().cuStreamSynchronize(session.stream) == 0 && cuda().cuStreamSynchronize(other) == 0);
                  while (ends.peer_channel->state().error == 0) sched_yield();
                  const int error = ends.peer_channel->state().error;
                  CHECK(error == ETIMEDOUT || error == EPIPE);
                  return 0;
                },
                short_of_time()),
            0);
}

TEST(stuck, case_2_a_channel_does_not_fill_the_launch_queue) {
  EXPECT_EQ(in_two([](const rank_session& session, two_ends& ends) -> int {
              if (session.rank == 1) {
                CHECK_OK(session.bootstrap->barrier());  // an end that closes is an error of the other
                return 0;
              }
              unsigned queued = 0;
              int code = 0;
              while ((code = ends.peer_channel->wait_signal(session.stream).code()) == 0) ++queued;
              CHECK(code == EAGAIN && queued - channel_options{}.most_queued <= 1);  // the one in which the stream stands
              for (unsigned i = 0; i < channel_options{}.most_queued; ++i)
                CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), 64));
              CHECK(ends.peer_channel->signal(session.stream).code() == EAGAIN);
              CHECK(queue_waits() == 0);
              CHECK_OK(session.bootstrap->barrier());
              ends.peer_channel->cancel(ECANCELED);
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
              return 0;
            }),
            0);
}

TEST(stuck, cases_2_and_9_a_launch_that_blocks_in_the_driver_is_freed) {
  const with_variable set("PEERLANE_SIM_QUEUE", "8");
  EXPECT_EQ(in_two([](const rank_session& session, two_ends& ends) -> int {
              if (session.rank == 1) return 0;
              CHECK_OK(ends.peer_channel->wait_signal(session.stream));
              std::atomic<int> refused{0};
              std::thread blocked([&] {
                const test::current_device device;
                for (int i = 0; i < 20; ++i)
                  if (cuda().cuMemsetD8Async(ends.send_buffer.pointer(), 0, 64, session.stream) != 0) ++refused;
              });
              while (queue_waits() == 0) sched_yield();
              CHECK(says(*ends.peer_channel,
                         "channel 7 to rank 1, peer executor: 0 puts queued, 0 sent; 1 waits queued, the streams "
                         "have reached 1\n"));
              ends.peer_channel->cancel(ECANCELED);
              blocked.join();
              CHECK(refused == 0);
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
              return 0;
            }),
            0);
}

std::atomic<int> g_loads{0};
cu::result_t count_loads(cu::module_t* out, const void* image) {
  ++g_loads;
  return cuda().cuModuleLoadData(out, image);
}

TEST(stuck, case_3_kernels_are_loaded_when_the_context_is_opened) {
  EXPECT_EQ(
      in_two(
          [](const rank_session& session, two_ends& ends) -> int {
            const int before = g_loads;
            CHECK(before == 1);
            CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), 64));
            CHECK_OK(ends.peer_channel->wait_signal(session.stream));
            CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
            CHECK(g_loads == before);
            return 0;
          },
          {}, [](cu::driver_table& t) { t.cuModuleLoadData = count_loads; }),
      0);
}

TEST(stuck, case_4_calls_that_wait_for_the_device_end_with_the_time_out) {
  EXPECT_EQ(in_two(
                [](const rank_session& session, two_ends& ends) -> int {
                  test::device_buffer unused(64);
                  CHECK(is_queued(ends.peer_channel->wait_signal(session.stream)));
                  unused.free_now();
                  while (ends.peer_channel->state().error == 0) sched_yield();
                  const int error = ends.peer_channel->state().error;
                  CHECK(error == ETIMEDOUT || error == EPIPE);
                  return 0;
                },
                short_of_time()),
            0);
}

TEST(stuck, case_5_blocking_launches_are_refused) {
  const with_variable set("CUDA_LAUNCH_BLOCKING", "1");
  EXPECT_EQ(messaging::fork_ranks(1,
                                  [](int rank, messaging::fork_bootstrap& sockets) -> int {
                                    auto bootstrap = sockets.take(rank);
                                    const test::current_device device;
                                    const auto refused = context::open(cuda(), *bootstrap);
                                    CHECK(refused.code() == ENOTSUP);
                                    CHECK(refused.error().message.find("CUDA_LAUNCH_BLOCKING") != std::string::npos);
                                    return 0;
                                  }),
            0);
}

TEST(stuck, case_6_two_processes_wait_for_each_other_on_one_gpu) {
  EXPECT_EQ(run_streams(2, gpus::shared, {},
                        [](const rank_session& session) {
                          two_ends ends;
                          if (const int line = ends.open(session)) return line;
                          for (int i = 0; i < 20; ++i) {
                            if (session.rank == 0) CHECK_OK(ends.peer_channel->signal(session.stream));
                            CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                            if (session.rank == 1) CHECK_OK(ends.peer_channel->signal(session.stream));
                          }
                          CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

TEST(stuck, case_7_a_host_function_that_waits_does_not_hold_channels_up) {
  EXPECT_EQ(in_two([](const rank_session& session, two_ends& ends) -> int {
              auto* const other = new_stream();
              std::atomic<bool> is_over{false};
              const auto wait = [](void* data) {
                while (!static_cast<std::atomic<bool>*>(data)->load()) sched_yield();
              };
              CHECK(cuda().cuLaunchHostFunc(other, wait, &is_over) == 0);
              CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), 64));
              CHECK_OK(ends.peer_channel->wait_signal(session.stream));
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
              CHECK(!is_idle(other));
              is_over = true;
              CHECK(cuda().cuStreamSynchronize(other) == 0);
              return 0;
            }),
            0);
}

TEST(stuck, case_8_everybody_waits_first) {
  const auto body = [](const rank_session& session, two_ends& ends, bool is_timed) -> int {
    CHECK(is_queued(ends.peer_channel->wait_signal(session.stream)));
    CHECK(is_queued(ends.peer_channel->signal(session.stream)));
    if (!is_timed) {
      CHECK(says(*ends.peer_channel, "  a stream is in wait 1 for put 1; 0 puts of the peer have arrived\n"));
      CHECK_OK(session.bootstrap->barrier());
      ends.peer_channel->cancel(ECANCELED);
    }
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    while (ends.peer_channel->state().error == 0) sched_yield();
    const auto now = ends.peer_channel->state();
    if (is_timed) CHECK(now.error == EPIPE || now.reason == "a stream has stood in wait 1 for 50 ms");
    return 0;
  };
  EXPECT_EQ(in_two([&](const rank_session& session, two_ends& ends) { return body(session, ends, false); }), 0);
  EXPECT_EQ(in_two([&](const rank_session& session, two_ends& ends) { return body(session, ends, true); }, short_of_time()),
            0);
}

TEST(stuck, case_8_depth_is_used_up_before_anybody_releases) {
  const auto body = [](const rank_session& session, two_ends& ends, bool is_timed) -> int {
    for (int i = 0; i < 3; ++i) CHECK(is_queued(ends.peer_channel->signal(session.stream)));
    CHECK(is_queued(ends.peer_channel->wait_signal(session.stream)));
    CHECK(is_queued(ends.peer_channel->release(session.stream, 1)));
    if (!is_timed) {
      CHECK(says(*ends.peer_channel, "  no stream has reached wait 1: check what is queued before it\n"));
      CHECK(says(*ends.peer_channel, "  a stream waits before put 3 until the peer releases put 1\n"));
      CHECK_OK(session.bootstrap->barrier());
      ends.peer_channel->cancel(ECANCELED);
    }
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    while (ends.peer_channel->state().error == 0) sched_yield();
    const auto now = ends.peer_channel->state();
    if (is_timed) CHECK(now.error == EPIPE || now.reason == "put 3 has waited for the release of put 1 for 50 ms");
    return 0;
  };
  channel_options options;
  options.depth = 2;
  EXPECT_EQ(in_two([&](const rank_session& session, two_ends& ends) { return body(session, ends, false); }, options), 0);
  options = short_of_time();
  options.depth = 2;
  EXPECT_EQ(in_two([&](const rank_session& session, two_ends& ends) { return body(session, ends, true); }, options), 0);
}

TEST(stuck, case_10_a_forked_child_has_no_context) {
  EXPECT_EQ(in_two([](const rank_session& session, two_ends& ends) -> int {
              auto key = session.streams->expose(ends.receive_buffer.pointer(), 64);
              CHECK_OK(key);
              std::fflush(nullptr);
              const pid_t child = fork();
              if (child == 0) {
                alarm(20);
                auto& channel_end = *ends.peer_channel;
                const bool is_refused =
                    channel_end.ready(kTimeout).code() == EACCES && channel_end.signal(session.stream).code() == EACCES &&
                    channel_end.wait_signal(session.stream).code() == EACCES &&
                    channel_end.wait_signal(session.stream, 1).code() == EACCES &&
                    channel_end.put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), 1).code() ==
                        EACCES &&
                    channel_end.release(session.stream, 1).code() == EACCES && channel_end.arrived(1).code() == EACCES &&
                    channel_end.host_wait(1, kTimeout).code() == EACCES && channel_end.state().error == EACCES &&
                    channel_end.diag().find("fork()") != std::string::npos &&
                    session.streams->expose(ends.receive_buffer.pointer(), 64).code() == EACCES &&
                    session.streams->import(*key).code() == EACCES &&
                    session.streams->connect(1 - session.rank, 9).code() == EACCES &&
                    session.streams->diag().find("fork()") != std::string::npos;
                channel_end.cancel(ECANCELED);
                session.streams->withdraw(*key);
                session.streams->set_mode(run_mode::economy);
                ends.peer_channel.reset();
                _exit(is_refused ? 0 : 1);
              }
              int status = -1;
              CHECK(waitpid(child, &status, 0) == child && status == 0);
              // The parent's is unharmed.
              CHECK_OK(ends.peer_channel->signal(session.stream));
              CHECK_OK(ends.peer_channel->wait_signal(session.stream));
              CHECK(cuda().cuStreamSynchronize(session.stream) == 0 && ends.peer_channel->state().error == 0);
              return 0;
            }),
            0);
}

TEST(stuck, sixty_four_streams_are_let_go) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const rank_session& session) {
                          std::vector<std::unique_ptr<channel>> all;
                          std::vector<cu::stream_t> stream;
                          for (std::uint32_t id = 1; id <= 64; ++id) {
                            auto made = session.streams->connect(1 - session.rank, id);
                            CHECK_OK(made);
                            all.push_back(std::move(made).value());
                            stream.push_back(new_stream());
                          }
                          for (std::size_t i = 0; i < all.size(); ++i) CHECK_OK(all[i]->wait_signal(stream[i]));
                          CHECK_OK(session.bootstrap->barrier());
                          CHECK(std::none_of(stream.begin(), stream.end(), is_idle));
                          CHECK_OK(session.bootstrap->barrier());
                          if (session.rank == 0)
                            for (auto& each : all) each->cancel(ECANCELED);
                          for (auto* const each : stream) CHECK(cuda().cuStreamSynchronize(each) == 0);
                          for (auto* const each : stream) CHECK(cuda().cuStreamDestroy_v2(each) == 0);
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

}  // namespace
}  // namespace pl::triggered
