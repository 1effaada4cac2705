// SPDX-License-Identifier: Apache-2.0
// What is special about channels whose bytes a copy engine moves; channel_test.cpp and graph_test.cpp have what they share
// with others.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "base/text.hpp"
#include "messaging/bootstrap/endpoint.hpp"
#include "test/triggered/ends.hpp"
#include "triggered/fd_memory_server.hpp"

namespace pl::triggered {
namespace {

// Between two GPUs: puts that arrive where channels reach the other's memory, the reason where they do not.
TEST(dma, between_two_gpus_it_works_or_says_why_not) {
  EXPECT_EQ(run_streams(2, gpus::one_each, {},
                        [](const rank_session& session) {
                          auto end = session.streams->connect(1 - session.rank, 7, options_for(executor_kind::dma));
                          CHECK_OK(end);
                          if (const auto ready = (*end)->ready(kTimeout); !ready) {
                            CHECK(ready.code() == ENOTSUP);
                            CHECK(ready.error().message.find("the dma executor is not available: ") != std::string::npos);
                            CHECK_OK(session.bootstrap->barrier());
                            return 0;
                          }
                          const test::device_buffer source{kBytes}, window{kBytes};
                          const auto exposed = session.streams->expose(window.pointer(), kBytes);
                          CHECK_OK(exposed);
                          const auto keys = exchange_keys(session, *exposed);
                          CHECK_OK(keys);
                          const auto peer_rank = static_cast<std::size_t>(1 - session.rank);
                          const auto imported = session.streams->import((*keys)[peer_rank]);
                          CHECK_OK(imported);
                          test::set_device_bytes(source.pointer(), test::random_bytes(kBytes, 1 - peer_rank));
                          CHECK_OK((*end)->put_signal(session.stream, *imported, 0, source.pointer(), kBytes));
                          CHECK_OK((*end)->wait_signal(session.stream));
                          CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                          CHECK(test::device_bytes(window.pointer(), kBytes) == test::random_bytes(kBytes, peer_rank));
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

// What an engine has written to another GPU arrives some time after its word there, unless a flush stands between (and so it
// does on two H200): each put's bytes must be there behind its signal all the same.
int bytes_before_signals(const rank_session& session) {
  constexpr unsigned kRounds = 40;
  two_ends ends;
  auto options = options_for(executor_kind::dma);
  options.depth = 1;
  if (const int line = ends.open(session, options)) return line;
  const test::device_buffer used{kRounds * kBytes};
  for (unsigned round = 0; round < kRounds; ++round) {
    const bool is_sender = round % 2 == static_cast<unsigned>(session.rank);
    if (is_sender) {
      test::set_device_bytes(ends.send_buffer.pointer(), test::random_bytes(kBytes, round));
      CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), kBytes));
      CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
      continue;
    }
    const auto number = ends.peer_channel->wait_signal(session.stream);
    CHECK_OK(number);
    CHECK(cuda().cuMemcpyDtoDAsync_v2(used.pointer() + round * kBytes, ends.receive_buffer.pointer(), kBytes,
                                      session.stream) == 0);
    CHECK_OK(ends.peer_channel->release(session.stream, *number));
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
  }
  for (unsigned round = 0; round < kRounds; ++round)
    if (round % 2 != static_cast<unsigned>(session.rank))
      CHECK(test::device_bytes(used.pointer() + round * kBytes, kBytes) == test::random_bytes(kBytes, round));
  CHECK_OK(session.bootstrap->barrier());
  return 0;
}
TEST(dma, bytes_are_on_the_other_gpu_before_their_signal) {
  const with_variable seed("PEERLANE_SIM_SEED", "7");
  EXPECT_EQ(run_streams(2, gpus::one_each, {}, bytes_before_signals), 0);
}

TEST(dma, ends_that_ask_for_different_executors) {
  EXPECT_EQ(run_streams(2, gpus::shared, {},
                        [](const rank_session& session) {
                          const auto kind = session.rank == 0 ? executor_kind::dma : executor_kind::proxy;
                          auto end = session.streams->connect(1 - session.rank, 7, options_for(kind));
                          CHECK_OK(end);
                          CHECK((*end)->ready(kTimeout).code() == EINVAL);
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

// Physical blocks side by side, which CUDA IPC does not export, as source and as window.
TEST(dma, memory_that_cuda_does_not_export) {
  EXPECT_EQ(run_streams(2, gpus::shared, {},
                        [](const rank_session& session) {
                          constexpr std::size_t kBlock = 2 << 20;
                          const test::vmm_buffer source({kBlock, kBlock}), window({kBlock});
                          two_ends ends;
                          if (const int line = ends.open(session, options_for(executor_kind::dma))) return line;
                          const auto exposed = session.streams->expose(window.pointer(), kBlock);
                          CHECK_OK(exposed);
                          const auto keys = exchange_keys(session, *exposed);
                          CHECK_OK(keys);
                          const auto imported = session.streams->import((*keys)[static_cast<std::size_t>(1 - session.rank)]);
                          CHECK_OK(imported);
                          CHECK(imported->address == 0);
                          const auto sent = test::random_bytes(kBlock, 4 + static_cast<unsigned>(session.rank));
                          test::set_device_bytes(source.pointer() + kBlock / 2, sent);  // of both blocks
                          CHECK_OK(ends.peer_channel->put_signal(session.stream, *imported, 0, source.pointer() + kBlock / 2,
                                                                 kBlock));
                          CHECK_OK(ends.peer_channel->wait_signal(session.stream));
                          CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                          CHECK(test::device_bytes(window.pointer(), kBlock) ==
                                test::random_bytes(kBlock, 4 + static_cast<unsigned>(1 - session.rank)));
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

// The owner takes a window back and frees it while the peer still puts: no put fails, and none reaches what lies there next.
TEST(dma, a_window_that_its_owner_has_freed) {
  EXPECT_EQ(run_streams(2, gpus::shared, {},
                        [](const rank_session& session) {
                          two_ends ends;
                          if (const int line = ends.open(session, options_for(executor_kind::dma))) return line;
                          const auto put = [&] {
                            return ends.peer_channel->put_signal(session.stream, ends.peer_window, 0,
                                                                 ends.send_buffer.pointer(), kBytes);
                          };
                          if (session.rank == 0) {
                            test::set_device_bytes(ends.send_buffer.pointer(), test::random_bytes(kBytes, 3));
                            CHECK_OK(put());
                            CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                            CHECK_OK(session.bootstrap->barrier());
                            CHECK_OK(session.bootstrap->barrier());  // rank 1 has freed it
                            CHECK_OK(put());
                            CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                            CHECK_OK(session.bootstrap->barrier());
                            return 0;
                          }
                          CHECK_OK(ends.peer_channel->host_wait(1, kTimeout));
                          CHECK_OK(session.bootstrap->barrier());
                          session.streams->withdraw(ends.mine);
                          ends.receive_buffer.free_now();
                          const test::device_buffer next{kBytes};
                          const auto expected = test::random_bytes(kBytes, 8);
                          test::set_device_bytes(next.pointer(), expected);
                          CHECK_OK(session.bootstrap->barrier());
                          CHECK_OK(ends.peer_channel->host_wait(2, kTimeout));
                          CHECK(test::device_bytes(next.pointer(), kBytes) == expected);
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

TEST(dma, a_window_that_is_not_exposed_any_more) {
  EXPECT_EQ(run_streams(2, gpus::shared, {},
                        [](const rank_session& session) {
                          two_ends ends;
                          if (const int line = ends.open(session, options_for(executor_kind::dma))) return line;
                          if (session.rank == 1) session.streams->withdraw(ends.mine);
                          CHECK_OK(session.bootstrap->barrier());
                          if (session.rank == 0) {
                            const auto refused = ends.peer_channel->put_signal(session.stream, ends.peer_window, 0,
                                                                               ends.send_buffer.pointer(), 64);
                            CHECK(refused.code() == EINVAL);
                            CHECK(refused.error().message.find("is no longer exposed") != std::string::npos);
                            CHECK_OK(ends.peer_channel->signal(session.stream));  // the channel is as it was
                            CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                          } else {
                            CHECK_OK(ends.peer_channel->host_wait(1, kTimeout));
                          }
                          CHECK_OK(session.bootstrap->barrier());
                          return 0;
                        }),
            0);
}

// The second put's source becomes an address that nothing is bound to: the GPU ends the ring.
std::atomic<int> g_posts{0};
void break_second_post(cu::driver_table& table) {
  table.cuLaunchKernel = [](cu::function_t kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned block_y,
                            unsigned bz, unsigned shared, cu::stream_t stream, void** parameters, void** extra) {
    static std::uint64_t nowhere = 0x10'0000;
    void* changed[8];
    if (bx == 1 && ++g_posts == 2) {
      std::copy(parameters, parameters + 8, changed);
      changed[3] = &nowhere;
      parameters = changed;
    }
    return cuda().cuLaunchKernel(kernel, gx, gy, gz, bx, block_y, bz, shared, stream, parameters, extra);
  };
}

TEST(dma, a_ring_that_the_gpu_ends_is_an_error_of_both_ends) {
  EXPECT_EQ(run_streams(
                2, gpus::shared, {},
                [](const rank_session& session) {
                  two_ends ends;
                  if (const int line = ends.open(session, options_for(executor_kind::dma))) return line;
                  auto& channel_end = *ends.peer_channel;
                  if (session.rank == 0) {
                    for (int i = 0; i < 3; ++i)
                      CHECK_OK(channel_end.put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), 64));
                    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                    while (channel_end.state().error == 0) sched_yield();
                    CHECK(channel_end.state().error == EIO);
                    CHECK(channel_end.state().reason.find("a put could not be posted: ") != std::string::npos);
                    CHECK(channel_end.signal(session.stream).code() == EIO);
                    CHECK(channel_end.diag().find("its ring has ended") != std::string::npos);
                  } else {
                    CHECK_OK(channel_end.wait_signal(session.stream));
                    CHECK_OK(channel_end.wait_signal(session.stream));
                    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
                    while (channel_end.state().error == 0) sched_yield();
                    CHECK(channel_end.state().error == EPIPE);
                  }
                  CHECK_OK(session.bootstrap->barrier());
                  return 0;
                },
                -1, break_second_post),
            0);
}

// Memory is given to who knows the secret, and only what was asked for by its number.
TEST(fd_memory_server, refuses_other_users_and_unknown_numbers) {
  auto made = fd_memory_server::open([](std::uint32_t number) -> result<fd_memory> {
    return failure{EINVAL, "window " + std::to_string(number) + " is no longer exposed"};
  });
  ASSERT_TRUE(made) << made.error().message;
  const auto name = (*made)->own_name();
  const auto unknown = fd_memory_server::fetch(name, 12, kTimeout);
  EXPECT_EQ(unknown.code(), EINVAL);
  EXPECT_EQ(unknown.error().message, "window 12 is no longer exposed");
  auto wrong = name;
  ++wrong.secret;
  EXPECT_EQ(fd_memory_server::fetch(wrong, 12, kTimeout).code(), ETIMEDOUT);
  EXPECT_EQ(fd_memory_server::fetch(name, 13, kTimeout).error().message, "window 13 is no longer exposed");
  (*made).reset();
  EXPECT_EQ(fd_memory_server::fetch(name, 12, kTimeout).code(), ECONNREFUSED);
}

TEST(fd_memory_server, a_silent_connection_delays_no_other) {
  auto made = fd_memory_server::open([](std::uint32_t) -> result<fd_memory> { return failure{EINVAL, "known"}; });
  ASSERT_TRUE(made) << made.error().message;
  const auto name = (*made)->own_name();
  const auto place =
      messaging::local_endpoint(format("triggered-memory-%016llx", static_cast<unsigned long long>(name.place)));
  std::vector<unique_fd> silent;
  for (int i = 0; i < 20; ++i) {
    auto one = messaging::connect_to(place, 5000);
    ASSERT_TRUE(one) << one.error().message;
    if (i % 2 == 0) { EXPECT_EQ(write(one->get(), "half", 4), 4); }
    silent.push_back(*std::move(one));
  }
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(fd_memory_server::fetch(name, 12, std::chrono::seconds(30)).error().message, "known");
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
}

}  // namespace
}  // namespace pl::triggered
