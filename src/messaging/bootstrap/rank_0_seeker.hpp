// SPDX-License-Identifier: Apache-2.0
// A rank of an elastic job that has lost rank 0: connects to rank 0's address until a new process of rank 0 answers there,
// and has shown that it belongs to the job.
//
// Owns: a thread, while it looks; connecting and proving wait. Threads: all calls by one. Errors: EAGAIN: no thread can be
// had. What goes wrong at rank 0's end is tried again.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "messaging/bootstrap/frame_stream.hpp"
#include "messaging/bootstrap/socket_star.hpp"
#include "messaging/bootstrap/survivor_claim.hpp"

namespace pl::messaging {

class rank_0_seeker {
 public:
  rank_0_seeker(const meeting& settings, const std::string& secret);
  ~rank_0_seeker();
  // Begins to look, or begins anew with other facts.
  status look_for(survivor_claim claim);
  // What was found is kept: rank 0 counts on this process since then. Does not wait.
  void stop_looking();
  bool is_looking();
  // The connection with the new process, which this rank's claim has been told, once.
  std::optional<joined_meeting> take();
  // Readable when take() has one, or when what watch() was given is.
  int descriptor() const noexcept { return epoll_.get(); }
  void watch(int fd) const;

 private:
  void seek(const std::stop_token& stop);

  const meeting settings_;
  const std::string secret_;
  unique_fd epoll_, event_;
  std::mutex mutex_;  // of what follows
  std::condition_variable_any changed_;
  std::optional<survivor_claim> claim_;  // while it looks
  unsigned version_ = 0;                 // of the claim
  bool is_running_ = false;              // the thread, which may not have noticed yet that it is not to look any more
  std::optional<joined_meeting> found_;
  std::jthread thread_;
};

}  // namespace pl::messaging
