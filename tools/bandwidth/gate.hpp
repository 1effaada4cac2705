// SPDX-License-Identifier: Apache-2.0
// Holds streams until everything after the gate has been enqueued.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "tools/bandwidth/gpu_set.hpp"

namespace pl::bandwidth {

// A word in pinned host memory for which streams of any GPU wait (cuStreamWaitValue32): no kernel spins, and no time limit
// of a kernel starts the measurement early. Used by one thread. Opens when it ends.
//
// While streams are held, a driver call may block (a full launch queue, a kernel that is loaded late), and then nobody would
// open the gate: a watchdog does, `timeout_s` after close(). What was measured is then worthless, see was_forced().
class gate {
 public:
  // `owner`: in whose context the word is made. Makes the word known to every GPU that will be held.
  static result<std::unique_ptr<gate>> make(gpu_set& gpus, int owner);
  ~gate();
  gate(const gate&) = delete;
  gate& operator=(const gate&) = delete;

  void close(unsigned timeout_s);
  // All later work of `stream`, which belongs to `gpu` (current on this thread), waits for open().
  status hold(int gpu, cu::stream_t stream);
  // Nothing more will be enqueued, so the watchdog may sleep. Whoever waits from now on has a limit of its own.
  void everything_is_enqueued();
  void open();
  bool was_forced() const;

 private:
  gate(gpu_set& gpus, int owner, std::uint32_t* word);
  void watch();
  void open_locked();

  gpu_set& gpus_;
  const int owner_;
  std::uint32_t* const word_;
  std::uint32_t round_ = 0;  // streams wait for word >= round
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t deadline_ns_ = 0;  // 0: the watchdog sleeps
  bool forced_ = false;
  bool ending_ = false;
  std::thread watchdog_;
};

}  // namespace pl::bandwidth
