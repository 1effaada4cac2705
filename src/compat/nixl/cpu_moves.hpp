// SPDX-License-Identifier: Apache-2.0
// Moves between host memories, of this process or with another one (process_vm_readv and _writev): short lists at once, long
// ones by a thread.
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

// What a list of moves is run with.
struct cpu_list {
  std::vector<cpu_move> moves;
  pid_t peer = 0;                // 0: both sides are this process's
  bool is_peer_written = false;  // the destinations are the peer's, else the sources
  std::uint64_t size_bytes = 0;
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
  };
  void begin(const std::shared_ptr<run>& work);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<run>> queue_;
  bool is_ending_ = false;
  std::thread thread_;  // started by the first long list
};

}  // namespace pl::nixl
