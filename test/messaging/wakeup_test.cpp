// SPDX-License-Identifier: Apache-2.0
// Sleeping until something happens: on the descriptor, and with a progress thread. A wake-up that is lost shows as a sleep
// that does not end.
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "test/messaging/job.hpp"
#include "test/support/scarce_threads.hpp"

namespace pl::messaging {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRounds = 300;
#else
constexpr int kRounds = 3000;
#endif

// Sleeps on the descriptor until `done`. False: a sleep did not end, or the messenger cannot sleep.
bool sleep_until(messenger& world, const std::function<bool()>& done) {
  const auto descriptor = world.event_descriptor();
  if (!descriptor) return false;
  while (!done()) {
    world.progress();
    const auto armed = world.arm();
    if (!armed && armed.code() == EBUSY) continue;
    if (!armed) return false;
    pollfd waited{*descriptor, POLLIN, 0};
    if (poll(&waited, 1, static_cast<int>(std::chrono::milliseconds(kTimeout).count())) <= 0) return false;
  }
  return true;
}

// Without a look at the network or at memory: what another thread does must wake.
bool sleep_for(messenger& world, const request& one) {
  return sleep_until(world, [&] { return const_cast<request&>(one).test(); });
}

// All threads of the process sleep, at many looks in a row.
bool does_sleep(pid_t process) {
  constexpr int kLooks = 50;
  for (int round = 0; round < kLooks; ++round) {
    std::error_code ignored;
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task", ignored)) {
      std::ifstream file(task.path() / "stat");
      const std::string text((std::istreambuf_iterator<char>(file)), {});
      const auto name_end = text.rfind(')');
      if (name_end == std::string::npos || text[name_end + 2] != 'S') return false;
    }
    sched_yield();
  }
  return true;
}

bool wait_for_sleep(pid_t process) {
  const auto limit = std::chrono::steady_clock::now() + kTimeout;
  while (!does_sleep(process))
    if (std::chrono::steady_clock::now() > limit) return false;
  return true;
}

// Tells rank 0 the process number of rank 1.
int exchange_pid(const rank_context& ctx, pid_t& other) {
  other = getpid();
  if (ctx.rank == 1) CHECK_OK(ctx.messenger->send(0, host_buffer(&other, sizeof other), 99, kTimeout));
  else CHECK_OK(ctx.messenger->recv(1, host_buffer(&other, sizeof other), 99, kWholeTag, kTimeout));
  return 0;
}

// Ping-pong of all sizes and kinds of memory, both sides asleep between the messages or just about to.
int play_asleep(const rank_context& ctx, bool has_gpu, int rounds) {
  constexpr std::size_t kMaxBytes = 300 << 10;
  const piece host(false, kMaxBytes);
  std::optional<piece> device;
  if (has_gpu) device.emplace(true, kMaxBytes);
  std::mt19937 random(7);  // the same in both
  for (int round = 0; round < rounds; ++round) {
    const auto large = random() % 16 == 0;
    const std::size_t bytes = large ? random() % kMaxBytes : random() % 64;
    const bool is_device = device && random() % 4 == 0;
    const bool is_sender = static_cast<int>(random() % 2) == ctx.rank;
    const auto pause = random() % 200;
    const auto& memory = is_device ? *device : host;
    for (unsigned i = 0; i < pause && !is_sender; ++i) ctx.messenger->progress();
    auto one = is_sender ? ctx.messenger->isend(1 - ctx.rank, memory.part(0, bytes), 1)
                         : ctx.messenger->irecv(1 - ctx.rank, memory.part(0, bytes), 1);
    CHECK(sleep_for(*ctx.messenger, one));
    CHECK_OK(one.outcome());
  }
  return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
}

TEST(wakeup, both_sides_sleep_between_messages) {
  auto no_pull = test_options();
  no_pull.use_cma = false;
  for (const auto& options : {test_options(), no_pull}) {
    EXPECT_EQ(run_job(2, gpus::none, options, [](const rank_context& ctx) { return play_asleep(ctx, false, kRounds); }), 0);
    EXPECT_EQ(
        run_job(2, gpus::one_each, options, [](const rank_context& ctx) { return play_asleep(ctx, true, kRounds / 4); }), 0);
  }
}

TEST(wakeup, both_sides_sleep_between_messages_of_ucx) {
  auto options = test_options();
  options.path = messenger_options::path_t::network;
  EXPECT_EQ(run_job(2, gpus::none, options, [](const rank_context& ctx) { return play_asleep(ctx, false, kRounds / 4); }),
            0);
}

TEST(wakeup, a_sender_sleeps_until_the_queue_has_room) {
  constexpr unsigned kMessages = 5000;
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      pid_t other = 0;
                      if (ctx.rank == 0) {
                        std::vector<std::uint32_t> values(kMessages);
                        std::vector<request> all;
                        const pid_t mine = getpid();
                        CHECK_OK(ctx.messenger->send(1, host_buffer(&mine, sizeof mine), 99, kTimeout));
                        for (unsigned i = 0; i < kMessages; ++i) {
                          values[i] = i;
                          all.push_back(ctx.messenger->isend(1, host_buffer(&values[i], sizeof values[i]), 1));
                        }
                        for (const auto& each : all) CHECK(sleep_for(*ctx.messenger, each));
                        return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                      }
                      CHECK_OK(ctx.messenger->recv(0, host_buffer(&other, sizeof other), 99, kWholeTag, kTimeout));
                      CHECK(wait_for_sleep(other));
                      for (unsigned i = 0; i < kMessages; ++i) {
                        std::uint32_t value = 0;
                        CHECK_OK(ctx.messenger->recv(0, host_buffer(&value, sizeof value), 1, kWholeTag, kTimeout));
                        CHECK(value == i);
                      }
                      return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                    }),
            0);
}

TEST(wakeup, the_end_of_a_peer_wakes) {
  for (const bool is_network : {false, true}) {
    auto options = test_options();
    if (is_network) options.path = messenger_options::path_t::network;
    EXPECT_EQ(run_job(
                  2, gpus::none, options,
                  [](const rank_context& ctx) {
                    pid_t other = 0;
                    if (const int failed = exchange_pid(ctx, other)) return failed;
                    if (ctx.rank == 0) {
                      if (!wait_for_sleep(other)) return __LINE__;
                      return raise(SIGKILL);
                    }
                    char byte = 0;
                    auto never = ctx.messenger->irecv(0, host_buffer(&byte, 1), 5);
                    CHECK(sleep_for(*ctx.messenger, never));
                    CHECK(never.outcome().code() == ECONNRESET);
                    return 0;
                  },
                  0),
              0)
        << is_network;
  }
}

// The peer can open no file when it should wake the waiter, and does so once it can.
TEST(wakeup, a_wakeup_that_cannot_be_sent_is_sent_later) {
  EXPECT_EQ(run_job(2, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      pid_t other = 0;
                      if (const int failed = exchange_pid(ctx, other)) return failed;
                      char byte = 0;
                      if (ctx.rank == 1) {
                        auto one = ctx.messenger->irecv(0, host_buffer(&byte, 1), 5);
                        CHECK(sleep_for(*ctx.messenger, one));
                        return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                      }
                      CHECK(wait_for_sleep(other));
                      rlimit before{};
                      CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
                      const rlimit none{0, before.rlim_max};
                      CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
                      CHECK_OK(ctx.messenger->send(1, host_buffer(&byte, 1), 5, kTimeout));
                      ctx.messenger->progress();
                      CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
                      CHECK(does_sleep(other));
                      return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                    }),
            0);
}

// ---- Several threads of one process

// The loop sleeps, and other threads end its operations.
TEST(wakeup, what_other_threads_do_wakes_the_loop) {
  for (const bool has_thread : {false, true}) {
    auto options = test_options();
    options.progress_thread = has_thread;
    EXPECT_EQ(run_job(1, gpus::none, options,
                      [](const rank_context& ctx) {
                        std::atomic<int> turn{0};
                        std::jthread sender([&] {
                          for (int i = 0; i < kRounds; ++i) {
                            while (turn.load() != i) sched_yield();
                            static_cast<void>(ctx.messenger->send(0, host_buffer(&i, sizeof i), 3, kTimeout));
                          }
                        });
                        for (int i = 0; i < kRounds; ++i) {
                          int value = -1;
                          auto one = ctx.messenger->irecv(0, host_buffer(&value, sizeof value), 3);
                          turn.store(i);
                          CHECK(sleep_for(*ctx.messenger, one));
                          CHECK(value == i);
                        }
                        return 0;
                      }),
              0)
        << has_thread;
  }
}

// Threads of both processes wait for each other, and every wait sleeps.
int talk_by_threads(const rank_context& ctx, int threads) {
  std::atomic<int> failures{0};
  std::vector<std::jthread> all;
  for (int number = 0; number < threads; ++number)
    all.emplace_back([&, number] {
      const auto tag = static_cast<std::uint64_t>(number);
      for (int i = 0; i < kRounds / 4; ++i) {
        int value = i;
        if (ctx.rank == i % 2) {
          if (!ctx.messenger->send(1 - ctx.rank, host_buffer(&value, sizeof value), tag, kTimeout)) ++failures;
        } else {
          value = -1;
          if (!ctx.messenger->recv(kAnySource, host_buffer(&value, sizeof value), tag, kWholeTag, kTimeout)) ++failures;
          if (value != i) ++failures;
        }
      }
    });
  all.clear();
  CHECK(failures == 0);
  return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
}

TEST(progress_thread, without_one_opening_is_refused) {
  auto options = test_options();
  options.progress_thread = true;
  EXPECT_EQ(fork_ranks(1,
                       [&](int rank, fork_bootstrap& sockets) {
                         auto group = sockets.take(rank);
                         std::optional<test::scarce_threads> none(std::in_place);
                         const auto refused = messenger::open(nullptr, *group, options);
                         none.reset();
                         CHECK(refused.code() == EAGAIN);
                         auto opened = messenger::open(nullptr, *group, options);
                         CHECK_OK(opened);
                         CHECK_OK((*opened)->barrier(kTimeout));
                         return 0;
                       }),
            0);
}

TEST(progress_thread, waits_of_many_threads_end) {
  for (const bool is_network : {false, true}) {
    auto options = test_options();
    options.progress_thread = true;
    if (is_network) options.path = messenger_options::path_t::network;
    EXPECT_EQ(run_job(2, gpus::none, options, [](const rank_context& ctx) { return talk_by_threads(ctx, 4); }), 0)
        << is_network;
  }
}

TEST(progress_thread, a_process_that_sleeps_answers_puts_and_a_wait_does_not_spin) {
  auto options = test_options();
  options.progress_thread = true;
  options.use_cma = false;  // else the other one writes by itself
  EXPECT_EQ(run_job(2, gpus::none, options,
                    [](const rank_context& ctx) {
                      pid_t other = 0;
                      if (const int failed = exchange_pid(ctx, other)) return failed;
                      constexpr std::size_t kBytes = 256 << 10;
                      piece memory(false, kBytes);
                      window::key_t key{};
                      if (ctx.rank == 1) {
                        auto exposed = ctx.messenger->expose(memory.all());
                        CHECK_OK(exposed);
                        key = exposed->key();
                        CHECK_OK(ctx.messenger->send(0, host_buffer(&key, sizeof key), 1, kTimeout));
                        char byte = 0;
                        CHECK_OK(ctx.messenger->recv(0, host_buffer(&byte, 1), 2, kWholeTag, kTimeout));
                        CHECK(memory.get(kBytes) == test::random_bytes(kBytes, 3));
                        return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                      }
                      CHECK_OK(ctx.messenger->recv(1, host_buffer(&key, sizeof key), 1, kWholeTag, kTimeout));
                      CHECK(wait_for_sleep(other));  // its wait for the last message, and its progress thread
                      memory.set(test::random_bytes(kBytes, 3));
                      auto put = ctx.messenger->put(key, 0, memory.all());
                      CHECK_OK(put.wait(kTimeout));
                      CHECK(ctx.messenger->counts().one_sided == 0);
                      char byte = 0;
                      CHECK_OK(ctx.messenger->send(1, host_buffer(&byte, 1), 2, kTimeout));
                      return ctx.messenger->barrier(kTimeout).ok() ? 0 : __LINE__;
                    }),
            0);
}

TEST(progress_thread, limits_of_waits_hold_and_a_dead_peer_ends_them) {
  auto options = test_options();
  options.progress_thread = true;
  EXPECT_EQ(run_job(
                2, gpus::none, options,
                [](const rank_context& ctx) {
                  pid_t other = 0;
                  if (const int failed = exchange_pid(ctx, other)) return failed;
                  char byte = 0;
                  if (ctx.rank == 0) {
                    if (!ctx.messenger->recv(1, host_buffer(&byte, 1), 6, kWholeTag, kTimeout)) return __LINE__;
                    if (!wait_for_sleep(other)) return __LINE__;
                    return raise(SIGKILL);
                  }
                  CHECK(ctx.messenger->recv(0, host_buffer(&byte, 1), 4, kWholeTag, 20ms).code() == ETIMEDOUT);
                  CHECK_OK(ctx.messenger->send(0, host_buffer(&byte, 1), 6, kTimeout));
                  CHECK(ctx.messenger->recv(0, host_buffer(&byte, 1), 5).code() == ECONNRESET);
                  return 0;
                },
                0),
            0);
}

}  // namespace
}  // namespace pl::messaging
