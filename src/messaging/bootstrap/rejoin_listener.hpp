// SPDX-License-Identifier: Apache-2.0
// Rank 0's socket after all have come, in a job whose ranks may come back: who asks to be which rank.
//
// Owns: the listening socket, and the connections of visitors and of who asks. Threads: one; nothing here waits but for a
// small frame to leave (kSendMs). Errors: a visitor that is refused hears why; none comes out.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>

#include "messaging/bootstrap/visitor_desk.hpp"

namespace pl::messaging {

class rejoin_listener {
 public:
  // `run`: the number that all frames of this run carry.
  rejoin_listener(const meeting& settings, const std::string& secret, unique_fd listener, std::uint64_t run);
  // Looks after visitors. A rank that a process asks to be, each time once.
  std::optional<int> next();
  // Who has shown to somebody else that it belongs to the job asks to be this rank.
  void take_over(int rank, frame_stream stream);
  // The connection of who asks, after it was told that it is welcome. ECONNRESET: it is gone.
  result<frame_stream> admit(int rank, std::uint32_t incarnation);
  void refuse(int rank, const std::string& reason);
  // Readable when one of these has something to say: visitors, who asks, and what watch() was given.
  int descriptor() const noexcept { return epoll_.get(); }
  void watch(int fd) const;

 private:
  status judge(visitor_desk::visitor& candidate, const star_frame_head& hello, const std::string& introduction);
  void drop_gone();

  const meeting settings_;
  const std::uint64_t run_;
  unique_fd listener_, epoll_;
  visitor_desk desk_;
  std::map<int, frame_stream> asking_;
  std::deque<int> untold_;
};

}  // namespace pl::messaging
