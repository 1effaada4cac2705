// SPDX-License-Identifier: Apache-2.0
#include "copy/worker_pool.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "arch/mmio.hpp"

namespace pl::copy {
namespace {

using std::chrono::milliseconds;

constexpr unsigned kManyJobs = 100'000;

constexpr auto kGenerous = std::chrono::seconds(20);
constexpr const char* kNoHelpers = "this process may run on one CPU only, so a pool has no helpers";

// How often each part of one job ran.
class part_counts {
 public:
  explicit part_counts(std::size_t parts) : counts_(parts) {}
  void operator()(std::size_t part) { counts_.at(part).fetch_add(1, std::memory_order_relaxed); }
  bool all_once() const {
    return std::all_of(counts_.begin(), counts_.end(), [](const auto& count) { return count.load() == 1; });
  }

 private:
  std::vector<std::atomic<unsigned>> counts_;
};

// Runs `body` on a helper. False: none came within a generous time.
template <class What>
bool run_on_helper(worker_pool& pool, const What& body) {
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> was_on_helper{false};
  pool.run(2, 2, [&](std::size_t) {
    if (std::this_thread::get_id() == caller) {
      const auto deadline = std::chrono::steady_clock::now() + kGenerous;
      while (!was_on_helper.load() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    } else {
      body();
      was_on_helper.store(true);
    }
  });
  return was_on_helper.load();
}

std::size_t threads_of_process() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

TEST(WorkerPool, RunsEveryPartOnce) {
  for (const unsigned helpers : {0u, 1u, 3u, 7u}) {
    worker_pool pool({.helpers = helpers, .cpus = {}});
    EXPECT_LE(pool.helpers(), helpers);
    for (unsigned width = 0; width <= 9; ++width) {
      for (const std::size_t parts : {0u, 1u, 2u, 3u, 7u, 16u, 100u, 1000u}) {
        part_counts counts(parts);
        pool.run(width, parts, counts);
        ASSERT_TRUE(counts.all_once()) << helpers << " helpers, width " << width << ", " << parts << " parts";
      }
    }
  }
}

// Once on each thread that had a part, after that thread's last part, and before run() returns.
TEST(WorkerPool, EachThreadFinishesOnceBehindItsParts) {
  worker_pool pool({.helpers = 3, .cpus = {}});
  struct {
    std::mutex mutex;
    std::map<std::thread::id, std::pair<unsigned, unsigned>> threads;  // parts, finishes
    unsigned late = 0;                                                 // parts behind a finish
    void operator()(std::size_t) {
      const std::lock_guard lock(mutex);
      auto& mine = threads[std::this_thread::get_id()];
      late += mine.second;
      ++mine.first;
    }
    void finish() {
      const std::lock_guard lock(mutex);
      ++threads[std::this_thread::get_id()].second;
    }
  } body;
  for (unsigned round = 0; round < 500; ++round) {
    for (const unsigned width : {1u, 2u, 4u}) {
      const std::size_t parts = 1 + round % 20;
      body.threads.clear();
      pool.run_and_finish(width, parts, body);
      std::size_t sum = 0;
      for (const auto& [thread, counts] : body.threads) {
        ASSERT_EQ(counts.second, 1u) << "after " << counts.first << " parts, width " << width;
        sum += counts.first;
      }
      ASSERT_EQ(sum, parts);
      ASSERT_EQ(body.late, 0u);
    }
  }
}

// Each job has its own context on the stack and one of two bodies. A helper that came late and took a part of the next job
// with this job's body or context would count in the wrong place, or write where a dead context was.
TEST(WorkerPool, ManyShortJobsDoNotMix) {
  worker_pool pool({.helpers = 3, .cpus = {}});
  struct job {
    unsigned number;
    bool is_even;
    std::atomic<unsigned> counts[8];
    std::atomic<unsigned> strangers;
  };
  static constexpr auto count = [](void* context, std::size_t part, bool is_even) {
    auto& mine = *static_cast<job*>(context);
    // Long enough for helpers to come: at the beginning, in the middle, too late.
    for (unsigned pause = 0; pause < mine.number % 5; ++pause) arch::relax();
    if (mine.is_even != is_even || part >= 1 + mine.number % 8) mine.strangers.fetch_add(1, std::memory_order_relaxed);
    else mine.counts[part].fetch_add(1, std::memory_order_relaxed);
  };
  const auto even = +[](void* context, std::size_t part) { count(context, part, true); };
  const auto odd = +[](void* context, std::size_t part) { count(context, part, false); };
  for (unsigned number = 0; number < kManyJobs; ++number) {
    job mine{number, number % 2 == 0, {}, {}};
    const std::size_t parts = 1 + number % 8;
    pool.run(2 + number % 3, parts, mine.is_even ? even : odd, &mine);
    ASSERT_EQ(mine.strangers.load(), 0u) << "job " << number;
    for (std::size_t part = 0; part < 8; ++part)
      ASSERT_EQ(mine.counts[part].load(), part < parts ? 1u : 0u) << "job " << number << ", part " << part;
    mine.number = 0xDEAD;
  }
}

// Plain memory, not atomic: a thread checker sees it if the end of a job does not order what its parts did.
TEST(WorkerPool, WhatThePartsWroteIsVisible) {
  worker_pool pool({.helpers = 3, .cpus = {}});
  std::vector<unsigned> values(64);
  for (unsigned round = 1; round <= 3000; ++round) {
    pool.run(4, values.size(), [&](std::size_t part) { values[part] += round; });
    for (std::size_t part = 0; part < values.size(); ++part)
      ASSERT_EQ(values[part], round * (round + 1) / 2) << "round " << round;
  }
}

TEST(WorkerPool, TwoCallersAtOnceBothGetTheirWorkDone) {
  worker_pool pool({.helpers = 3, .cpus = {}});
  std::atomic<unsigned> wrong{0};
  const auto caller = [&] {
    for (unsigned i = 0; i < kManyJobs / 10; ++i) {
      part_counts counts(1 + i % 9);
      pool.run(4, 1 + i % 9, counts);
      if (!counts.all_once()) ++wrong;
    }
  };
  std::thread other(caller);
  caller();
  other.join();
  EXPECT_EQ(wrong.load(), 0u);
}

TEST(WorkerPool, NoMoreThreadsThanTheWidth) {
  worker_pool pool({.helpers = 7, .cpus = {}});
  for (const unsigned width : {1u, 2u, 3u}) {
    std::mutex guard;
    std::set<std::thread::id> threads;
    for (int job = 0; job < 50; ++job)
      pool.run(width, 50, [&](std::size_t) {
        const std::lock_guard lock(guard);
        threads.insert(std::this_thread::get_id());
      });
    EXPECT_LE(threads.size(), width);
  }
}

TEST(WorkerPool, HelpersThatSleepAreWoken) {
  for (const unsigned spin_us : {0u, 50u}) {
    worker_pool pool({.helpers = 1, .cpus = {}, .spin_us = spin_us});
    if (pool.helpers() == 0) GTEST_SKIP() << kNoHelpers;
    for (int round = 0; round < 30; ++round) {
      ASSERT_TRUE(run_on_helper(pool, [] {})) << "round " << round << ", spin_us " << spin_us;
      std::this_thread::sleep_for(milliseconds(2));  // long enough to fall asleep
    }
  }
}

// The caller wakes one of them, which wakes the next.
TEST(WorkerPool, AllHelpersComeWhileThereIsSomethingLeft) {
  worker_pool pool({.helpers = 3, .cpus = {}, .spin_us = 0});
  const unsigned width = pool.helpers() + 1;
  for (int round = 0; round < 20; ++round) {
    std::atomic<unsigned> arrived{0};
    std::atomic<bool> is_late{false};
    pool.run(width, width, [&](std::size_t) {
      ++arrived;
      const auto deadline = std::chrono::steady_clock::now() + kGenerous;
      while (arrived.load() != width)  // a part for each thread: none can be run by another one's
        if (std::chrono::steady_clock::now() > deadline) {
          is_late = true;
          break;
        }
    });
    ASSERT_FALSE(is_late) << "round " << round;
    std::this_thread::sleep_for(milliseconds(2));
  }
}

// Jobs come just when the helper lies down: no wake may get lost.
TEST(WorkerPool, HelpersThatAreAboutToSleepAreWoken) {
  worker_pool pool({.helpers = 1, .cpus = {}, .spin_us = 0});
  if (pool.helpers() == 0) GTEST_SKIP() << kNoHelpers;
  for (int round = 0; round < 4000; ++round) {
    for (int pause = 0; pause < round % 100; ++pause) arch::relax();  // it lies down after some 30 of these
    ASSERT_TRUE(run_on_helper(pool, [] {})) << "round " << round;
  }
}

TEST(WorkerPool, NoThreadBeforeAJobThatCanUseOne) {
  const std::size_t before = threads_of_process();
  worker_pool pool({.helpers = 3, .cpus = {}});
  pool.run(1, 8, [](std::size_t) {});
  pool.run(4, 1, [](std::size_t) {});
  EXPECT_EQ(threads_of_process(), before);
}

TEST(WorkerPool, WithoutHelpersTheCallerDoesAll) {
  worker_pool pool({.helpers = 0, .cpus = {}});
  EXPECT_EQ(pool.helpers(), 0u);
  std::vector<std::size_t> order;
  pool.run(8, 5, [&](std::size_t part) { order.push_back(part); });
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
}

TEST(WorkerPool, LeavesTheCallerACpu) {
  worker_pool pool({.helpers = 1000, .cpus = {}});
  EXPECT_LT(pool.helpers(), std::thread::hardware_concurrency());
  worker_pool near_one({.helpers = 4, .cpus = {0}});
  EXPECT_LE(near_one.helpers(), 1u);
}

TEST(WorkerPool, HelpersAreNamedAndTakeNoSignals) {
  worker_pool pool({.helpers = 1, .cpus = {}});
  if (pool.helpers() == 0) GTEST_SKIP() << kNoHelpers;
  char name[16] = "";
  sigset_t blocked{};
  ASSERT_TRUE(run_on_helper(pool, [&] {
    pthread_getname_np(pthread_self(), name, sizeof name);
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  }));
  EXPECT_STREQ(name, "pl-copy-0");
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM}) EXPECT_EQ(sigismember(&blocked, number), 1);
  sigset_t own{};
  pthread_sigmask(SIG_BLOCK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGUSR1), 0);  // the caller's mask is as it was
}

TEST(WorkerPool, HelpersDoNotInheritTheCallersCpuMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const int own = sched_getcpu();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(own, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  worker_pool pool({.helpers = 1, .cpus = {}});
  cpu_set_t of_helper;
  CPU_ZERO(&of_helper);
  const bool ran = pool.helpers() != 0 && run_on_helper(pool, [&] { sched_getaffinity(0, sizeof of_helper, &of_helper); });
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  if (pool.helpers() == 0) GTEST_SKIP() << kNoHelpers;
  ASSERT_TRUE(ran);
  EXPECT_TRUE(CPU_EQUAL(&of_helper, &before));
}

TEST(WorkerPool, HelpersStayOnTheirCpus) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int last = -1;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed)) last = cpu;
  worker_pool pool({.helpers = 1, .cpus = {last}});
  if (pool.helpers() == 0) GTEST_SKIP() << kNoHelpers;
  int seen = -1;
  ASSERT_TRUE(run_on_helper(pool, [&] { seen = sched_getcpu(); }));
  EXPECT_EQ(seen, last);
}

TEST(WorkerPool, EndsWhileItsHelpersAreHotColdOrJustStarting) {
  for (int round = 0; round < 100; ++round) {
    worker_pool pool({.helpers = 3, .cpus = {}, .spin_us = round % 3 == 0 ? 0u : 10'000u});
    pool.run(4, static_cast<std::size_t>(round % 5), [](std::size_t) {});
    if (round % 10 == 0) std::this_thread::sleep_for(milliseconds(1));
  }
}

// ---- fork ------------------------------------------------------------------------------------------------------------
// The child's exit code: 0 if all parts ran, on the child's own thread, and the pool could be destroyed.
int use_and_destroy_in_child(std::optional<worker_pool>& pool) {
  const auto self = pthread_self();
  unsigned counts[64] = {};
  bool is_alone = true;
  for (int job = 0; job < 3; ++job)
    pool->run(4, 64, [&](std::size_t part) {
      ++counts[part];
      is_alone = is_alone && pthread_equal(pthread_self(), self) != 0;
    });
  if (!std::all_of(std::begin(counts), std::end(counts), [](unsigned count) { return count == 3; })) return 1;
  if (!is_alone) return 2;
  pool.reset();
  return 0;
}

int exit_code_of(pid_t child) {
  for (int i = 0; i < 20'000; ++i) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    std::this_thread::sleep_for(milliseconds(1));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return -SIGKILL;
}

TEST(WorkerPool, AForkedChildWorksAlone) {
  std::optional<worker_pool> pool(std::in_place, worker_pool::options{.helpers = 3, .cpus = {}});
  pool->run(4, 64, [](std::size_t) {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(use_and_destroy_in_child(pool));
  EXPECT_EQ(exit_code_of(child), 0);
  part_counts counts(64);
  pool->run(4, 64, counts);  // the parent's goes on
  EXPECT_TRUE(counts.all_once());
}

TEST(WorkerPool, AForkedChildStartsNoHelpers) {
  std::optional<worker_pool> pool(std::in_place, worker_pool::options{.helpers = 3, .cpus = {}});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::size_t before = threads_of_process();
    pool->run(4, 64, [](std::size_t) {});
    _exit(threads_of_process() == before ? 0 : 1);
  }
  EXPECT_EQ(exit_code_of(child), 0);
}

TEST(WorkerPool, AChildForkedInTheMiddleOfAJobWorksAlone) {
  std::optional<worker_pool> pool(std::in_place, worker_pool::options{.helpers = 3, .cpus = {}});
  pid_t child = -1;
  std::atomic<bool> is_forked{false};
  std::atomic<bool> is_running{false};
  std::thread other([&] {
    pool->run(2, 2, [&](std::size_t) {
      is_running.store(true);
      while (!is_forked.load()) std::this_thread::yield();
    });
  });
  while (!is_running.load()) std::this_thread::yield();
  child = fork();
  if (child == 0) _exit(use_and_destroy_in_child(pool));
  is_forked.store(true);
  other.join();
  ASSERT_GE(child, 0);
  EXPECT_EQ(exit_code_of(child), 0);
}

// ---- cpus_near -------------------------------------------------------------------------------------------------------
TEST(CpusNear, AnUnknownDeviceHasNone) { EXPECT_TRUE(cpus_near("ffff:ff:1f.7").empty()); }

TEST(CpusNear, ADeviceOfThisMachineInEitherCase) {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/bus/pci/devices", error);
  if (error || devices == std::filesystem::directory_iterator()) GTEST_SKIP() << "this machine shows no PCI devices";
  std::string name = devices->path().filename();
  const std::vector<int> lower = cpus_near(name.c_str());
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  EXPECT_EQ(cpus_near(name.c_str()), lower);
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  for (const int cpu : lower) EXPECT_TRUE(CPU_ISSET(cpu, &allowed)) << cpu;
}

}  // namespace
}  // namespace pl::copy
