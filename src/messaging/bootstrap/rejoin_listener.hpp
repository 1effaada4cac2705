// SPDX-License-Identifier: Apache-2.0
// Rank 0's listening socket in an elastic job, once all ranks are connected: accepts processes that ask to rejoin as a rank.
//
// Owns: the listening socket, and the connections of processes that connect or ask to rejoin. Threads: one; a call
// waits at most for a small frame to be sent (kSendMs). Errors: a process that is refused receives the reason; the caller
// sees no error.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>

#include "messaging/bootstrap/join_acceptor.hpp"

namespace pl::messaging {

class rejoin_listener {
 public:
  // `run`: number of this run, which all its frames contain.
  rejoin_listener(const job_settings& settings, const std::string& secret, unique_fd listener, std::uint64_t run);
  // Serves connecting processes. Returns the rank that a process asks to take, once for each request; empty: no new request.
  std::optional<int> next();
  // Adds the request of a process that has already been authenticated elsewhere and asks to take this rank.
  void take_over(int rank, frame_stream stream);
  // Sends the welcome to the process that asks for `rank`, and returns its connection. ECONNRESET: the process is gone.
  result<frame_stream> admit(int rank, std::uint32_t incarnation);
  void refuse(int rank, const std::string& reason);
  // Readable when a connecting process, one that asks to rejoin, or a descriptor passed to watch() is readable.
  int descriptor() const noexcept { return epoll_.get(); }
  void watch(int fd) const;

 private:
  status judge(join_acceptor::joining_process& candidate, const star_frame_head& hello, const std::string& peer_info);
  void drop_gone();

  const job_settings settings_;
  const std::uint64_t run_;
  unique_fd listener_, epoll_;
  join_acceptor acceptor_;
  std::map<int, frame_stream> asking_;
  std::deque<int> unreported_;
};

}  // namespace pl::messaging
