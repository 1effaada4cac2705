// SPDX-License-Identifier: Apache-2.0
// An elastic job under a launcher: ranks that end as they are told to are started again, as new processes of the same rank.
#pragma once

#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "test/collectives/ranks.hpp"
#include "test/support/reserved_port.hpp"

namespace pl::collectives {

using messaging::messenger_options;
using messaging::request;

constexpr int kComeBack = 42;  // exit code of a rank that is to be started again
constexpr auto kSoon = 30s;    // generous for a loaded machine: it takes some milliseconds

// The path of a file with a job's secret, which others may not read.
inline std::string secret_file(const char* name, const char* secret) {
  const auto path = testing::TempDir() + "peerlane-" + name + "-" + std::to_string(getpid());
  std::ofstream(path) << secret << "\n";
  chmod(path.c_str(), 0600);
  return path;
}

struct elastic_rank {
  int rank = 0, size = 1;
  std::uint32_t process = 1;                    // of this rank, as the launcher counts
  std::atomic<std::uint32_t>* talks = nullptr;  // ends of talk() and all_reduce_once() at all ranks so far
  messaging::messenger* messages = nullptr;
  executor* all = nullptr;
};

// An atomic that the processes of a job share.
template <class Value>
class shared_atomic {
 public:
  shared_atomic()
      : value_(new (mmap(nullptr, sizeof *value_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                   std::atomic<Value>(Value{})) {}
  ~shared_atomic() { munmap(value_, sizeof *value_); }
  shared_atomic(const shared_atomic&) = delete;
  shared_atomic& operator=(const shared_atomic&) = delete;
  std::atomic<Value>& get() const { return *value_; }

 private:
  std::atomic<Value>* const value_;
};

class elastic_job {
 public:
  explicit elastic_job(int ranks, std::string host = "127.0.0.1", std::uint16_t port = 0)
      : size(ranks), rendezvous(host + ":" + std::to_string(port != 0 ? port : test::free_port())) {}

  const int size;
  const std::string rendezvous;
  messenger_options options = messaging::test_options();
  gpus layout = gpus::none;
  unsigned open_timeout_s = 30;
  std::function<bool(int rank)> before;                         // in each process, before anything is opened
  std::function<void(int rank, std::uint32_t process)> begins;  // behind it
  std::function<void(int rank, pid_t)> stopped;                 // the launcher sees that a rank has stopped

  messaging::bootstrap_options meeting_of(int rank) const {
    messaging::bootstrap_options out;
    out.rendezvous = rendezvous;
    out.rank = rank;
    out.size = size;
    out.timeout_s = open_timeout_s;
    out.is_elastic = true;
    return out;
  }

  // Processes that answered something else than 0, kComeBack, or a signal while `comes_back(rank, process)` holds.
  int run(const std::function<int(const elastic_rank&)>& body,
          const std::function<bool(int rank, std::uint32_t process)>& comes_back) {
    std::map<pid_t, int> living;
    std::vector<std::uint32_t> processes(static_cast<std::size_t>(size), 0);
    std::fflush(nullptr);
    const auto start = [&](int rank) {
      const auto process = ++processes[static_cast<std::size_t>(rank)];
      const pid_t child = fork();
      if (child == 0) be(rank, process, body);
      living[child] = rank;
    };
    for (int rank = 0; rank < size; ++rank) start(rank);
    int failures = 0;
    while (!living.empty()) {
      int status = 0;
      const pid_t ended = waitpid(-1, &status, WUNTRACED);
      const auto found = living.find(ended);
      if (ended <= 0 || found == living.end()) continue;
      const int rank = found->second;
      if (WIFSTOPPED(status)) {
        if (stopped) stopped(rank, ended);
        continue;
      }
      living.erase(found);
      if (status == 0) continue;
      const bool is_meant = WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == kComeBack;
      if (is_meant && comes_back(rank, processes[static_cast<std::size_t>(rank)])) start(rank);
      else if (!is_meant)
        ++failures, std::fprintf(stderr, "rank %d, process %u: status %d\n", rank, processes[static_cast<std::size_t>(rank)],
                                 status);
    }
    return failures;
  }

 private:
  std::shared_ptr<shared_atomic<std::uint32_t>> talks_ = std::make_shared<shared_atomic<std::uint32_t>>();

  [[noreturn]] void be(int rank, std::uint32_t process, const std::function<int(const elastic_rank&)>& body) const {
    alarm(120);  // a hang is a failure, not a hung test program
    int code = 1;
    if (!before || before(rank)) {
      if (begins) begins(rank, process);
      code = open_and_run(rank, process, body);
    }
    const bool has_leaks =
        __lsan_do_recoverable_leak_check != nullptr && code != kComeBack && __lsan_do_recoverable_leak_check() != 0;
    _exit(has_leaks ? 1 : code == 0 || code == kComeBack ? code : 1);
  }
  int open_and_run(int rank, std::uint32_t process, const std::function<int(const elastic_rank&)>& body) const {
    std::optional<test::current_device> device;
    if (layout != gpus::none) device.emplace(layout == gpus::shared ? 0 : rank % 2);
    auto group = messaging::open_bootstrap(meeting_of(rank));
    CHECK_OK(group);
    auto messages = messaging::messenger::open(layout == gpus::none ? nullptr : &test::simulated_cuda(), **group, options);
    CHECK_OK(messages);
    auto all = executor::open(**messages, **group);
    CHECK_OK(all);
    return body({rank, size, process, &talks_->get(), messages->get(), all->get()});
  }
};

template <class Condition>
bool becomes_true(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kSoon;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    usleep(1000);
  }
  return true;
}

// What one of the processes sets and another one waits for.
class shared_flag {
 public:
  void set() { is_set_.get() = true; }
  bool await() const {
    return becomes_true([&] { return is_set_.get().load(); });
  }

 private:
  shared_atomic<bool> is_set_;
};

// Until one fails: a rank is gone, or another one has noticed that.
inline status until_a_loss(const elastic_rank& me) {
  for (;;)
    if (auto done = wait(me.all->barrier()); !done) return done;
}

inline int all_reduce_once(const elastic_rank& me) {
  std::int32_t one = 1, sum = 0;
  CHECK_OK(wait(me.all->all_reduce(messaging::host_buffer(&one, 4), messaging::host_buffer(&sum, 4),
                                   {element::int32, reduction::sum})));
  CHECK(sum == me.size);
  CHECK_OK(me.messages->barrier(kSoon));
  ++*me.talks;
  return 0;
}

// Waits until all ranks have talked `times` times. A rank that is to be killed calls it first: the death of a rank that has
// completed a barrier stops the barrier at ranks that are still in it.
inline int await_talks(const elastic_rank& me, std::uint32_t times) {
  CHECK(becomes_true([&] {
    me.messages->progress();  // the others may need it
    return *me.talks >= times * static_cast<std::uint32_t>(me.size);
  }));
  return 0;
}

inline int die_after_talks(const elastic_rank& me, std::uint32_t times) {
  const int line = await_talks(me, times);
  return line != 0 ? line : raise(SIGKILL);
}

// This process is gone at that moment, wherever it is then.
inline void die_in(long us) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  itimerspec expiry{};
  expiry.it_value = {us / 1'000'000, us % 1'000'000 * 1000 + 1};
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) timer_settime(timer, 0, &expiry, nullptr);
}

// What a process holds.
struct holdings {
  long descriptors = 0, mappings = 0, resident_kib = 0;
  static holdings now() {
    holdings out;
    DIR* const folder = opendir("/proc/self/fd");
    while (readdir(folder) != nullptr) ++out.descriptors;
    closedir(folder);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) ++out.mappings;
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.rfind("VmRSS:", 0) == 0) out.resident_kib = std::stol(line.substr(6));
    return out;
  }
};

}  // namespace pl::collectives
