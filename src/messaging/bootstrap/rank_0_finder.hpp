// SPDX-License-Identifier: Apache-2.0
// Searches for a new process of rank 0, at a rank of an elastic job that has lost rank 0. It connects to the address of rank
// 0 until a process answers there and proves that it belongs to the job.
//
// Owns: a thread during the search, because connecting and authenticating block. Threads: call it from one thread. Errors:
// EAGAIN: the thread could not be started. Failures at rank 0's end are retried.
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

class rank_0_finder {
 public:
  rank_0_finder(const job_settings& settings, const std::string& secret);
  ~rank_0_finder();
  // Starts the search, or restarts it with a new claim.
  status start(survivor_claim claim);
  // Ends the search without waiting for the thread. A connection that was already found is kept, because rank 0 has counted
  // this process as connected since then.
  void stop_search();
  bool is_searching();
  // Returns the connection with the new process once; that process has received this rank's claim. Empty: none found yet.
  std::optional<joined_job> take();
  // Readable when take() has a connection, or when a descriptor passed to watch() is readable.
  int descriptor() const noexcept { return epoll_.get(); }
  void watch(int fd) const;

 private:
  void seek(const std::stop_token& stop);

  const job_settings settings_;
  const std::string secret_;
  unique_fd epoll_, event_;
  std::mutex mutex_;  // guards all members below
  std::condition_variable_any changed_;
  std::optional<survivor_claim> claim_;  // set during a search
  unsigned version_ = 0;                 // of claim_
  bool is_running_ = false;              // the thread runs; it may not have noticed yet that the search has ended
  std::optional<joined_job> found_;
  std::jthread thread_;
};

}  // namespace pl::messaging
