// SPDX-License-Identifier: Apache-2.0
// Moves between host memories, of this process or with another one (process_vm_readv and _writev): short lists at once,
// long ones by several threads, which take batches of them in turns.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.hpp"

namespace pl::nixl {

struct cpu_move {
  std::uint64_t destination = 0, source = 0, size_bytes = 0;
};

// The list of moves of a run.
struct cpu_list {
  void add(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes);

  std::vector<cpu_move> moves;
  std::vector<std::size_t> batches;  // where each begins
  pid_t peer = 0;                    // 0: both sides are this process's
  bool is_peer_written = false;      // the destinations are the peer's, else the sources
  std::uint64_t size_bytes = 0;

 private:
  std::uint64_t batch_bytes_ = 0;  // of the last one
};

class cpu_mover {
 public:
  cpu_mover() = default;
  ~cpu_mover();
  cpu_mover(const cpu_mover&) = delete;
  cpu_mover& operator=(const cpu_mover&) = delete;

  // One run of a list, which the caller keeps until is_done.
  struct run {
    const cpu_list* list = nullptr;
    std::atomic<bool> is_done{false}, is_cancelled{false};
    status outcome;  // once it is done
    std::atomic<std::size_t> next_batch{0};
    std::mutex mutex;
    unsigned workers = 1;  // that have not ended
  };
  void begin(const std::shared_ptr<run>& work);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<run>> queue_;
  bool is_ending_ = false;
  std::vector<std::thread> threads_;  // started by the first long list
};

}  // namespace pl::nixl
