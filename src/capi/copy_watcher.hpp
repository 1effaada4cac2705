// SPDX-License-Identifier: Apache-2.0
// Calls the functions that were registered for the end of copies (peerlane_op_then). A copy ends on the GPU or in a
// thread of the planner, and nothing there reports it: a thread of this class polls those copies every 50 us, and only
// while there are any.
//
// The copy's own thread and the watcher's alternate by means of the copy's mutex. Must be destroyed before its planner.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "capi/operation_calls.hpp"
#include "copy/completion.hpp"

namespace pl {

class watched_copy {
 public:
  watched_copy(copy::completion&& copies, std::uint64_t size_bytes, end_function_ptr function)
      : copies_(std::move(copies)), size_bytes_(size_bytes), function_(std::move(function)) {}
  // The outcome, once the copies have ended and the function has returned. If another thread is in the function, this
  // one waits for it or not.
  enum class function_wait : bool { none, for_function };
  std::optional<status> poll(function_wait allowed);
  // For an owner whose copies could not be watched.
  copy::completion take_back() noexcept { return std::move(copies_); }
  // For make_wait and record: calls `act(completion&)` unless the copies have ended.
  template <class Act>
  status with_copies(Act&& act) {
    const std::lock_guard lock(mutex_);
    return ended_ ? *ended_ : act(copies_);
  }

 private:
  std::mutex mutex_;
  copy::completion copies_;
  std::optional<status> ended_;
  const std::uint64_t size_bytes_;
  const end_function_ptr function_;
};

class copy_watcher {
 public:
  ~copy_watcher();
  void watch(std::shared_ptr<watched_copy> one);

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<watched_copy>> watched_;
  bool stop_ = false;
  std::thread thread_;
};

inline peerlane_op_info copy_info(int error, std::uint64_t size_bytes) noexcept {
  peerlane_op_info out;
  peerlane_op_info_clear(&out);
  out.error = error;
  out.size_bytes = size_bytes;
  out.moved_bytes = error == 0 ? size_bytes : 0;
  return out;
}

}  // namespace pl
