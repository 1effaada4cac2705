// SPDX-License-Identifier: Apache-2.0
// The proof that no CPU takes part: two ranks queue a long exchange behind a gate, are stopped (SIGSTOP), and the gate is
// opened from outside. If the exchange ends before they are continued, the GPUs did it alone.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "measure/result_file.hpp"
#include "tools/triggered/bench_rank.hpp"

namespace pl::async {

struct stopped_plan {
  int iterations = 200;  // round trips; a launch queue holds some 1024 operations, and a rank queues 3 an iteration
  std::size_t bytes = 128;
  int timeout_ms = 2000;  // how long the ranks stay stopped if the exchange does not end
};

// In memory that the launching process and the ranks share; the GPUs reach the first two words of it.
struct stopped_board {
  static constexpr int kRanks = 2;
  enum : int { waiting = 0, finished_while_stopped, not_finished, ranks_not_ready, not_stopped };

  alignas(64) std::atomic<std::uint64_t> gate;  // 1: both streams go on
  struct alignas(64) rank_part {
    std::atomic<std::uint64_t> done;  // written by the rank's stream after everything else
    std::atomic<pid_t> is_queued;     // the rank's process, once its calls have returned
  } ranks[kRanks];
  // Written by the watcher, once the ranks run again.
  alignas(64) std::atomic<int> outcome;
  std::uint64_t exchange_ns;  // from opening the gate to seeing both words
  std::uint64_t stopped_ns;
  std::int64_t cpu_ticks;  // that both ranks used meanwhile
};

// A thread of the launching process, for `rank_plan::when_forked`; its board is there before, for the ranks to inherit.
class stopped_watcher {
 public:
  explicit stopped_watcher(const stopped_plan& plan);
  ~stopped_watcher();  // gives up if the ranks have ended
  void start();        // once
  stopped_watcher(const stopped_watcher&) = delete;
  stopped_watcher& operator=(const stopped_watcher&) = delete;

  stopped_board& board() const { return *board_; }

 private:
  void watch();
  int stop_and_check(const pid_t* ranks);
  bool wait_until(std::uint64_t limit_ns, bool (*is_so)(const stopped_board&)) const;
  const stopped_plan plan_;
  stopped_board* board_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

// Collective, between two. On a simulated GPU streams are threads of the stopped processes, so the exchange cannot end there
// before they go on: then the run only shows that the watcher sees this and that nothing is lost. Exit code: 1 after wrong
// data, or on a real GPU if the exchange did not end while the ranks were stopped.
int run_stopped(bench_rank& session, const stopped_plan& plan, stopped_board& board, result_file* file);

}  // namespace pl::async
