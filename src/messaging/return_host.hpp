// SPDX-License-Identifier: Apache-2.0
// Rank 0's part of ranks that come back: it coordinates returns, decides which process is a rank, and forwards the messages
// between the new process and the others. Ranks come back one at a time; the others wait.
//
//   process              rank 0                 the others
//   asks      -------->  admits once the rank is dead
//   part k    -------->  ------ step k ------->  readmission::take
//             <--------  <----- answer k ------
//
// Owns: the list of processes that ask, and the admission in progress. Threads: the messenger's lock guards all calls.
// Errors: ETIMEDOUT and EEXIST with a message, sent to the process that asks.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/attended_time.hpp"
#include "messaging/bootstrap/rejoin_requests.hpp"
#include "messaging/peer_watch.hpp"
#include "messaging/rejoin_messages.hpp"

namespace pl::messaging {

class return_host {
 public:
  return_host(messenger_context& context, peer_watch& watch, rejoin_messages& messages)
      : context_(context), watch_(watch), rejoin_messages_(messages) {}
  // `opening_text`: sent to a process that has come back when it opens its collectives.
  void open(rejoin_requests& requests, std::string opening_text) {
    requests_ = &requests;
    opening_text_ = std::move(opening_text);
    const auto last = requests.last_incarnations();
    for (std::size_t rank = 0; rank < last.size(); ++rank) last_incarnation_[static_cast<int>(rank)] = last[rank];
  }
  bool is_open() const noexcept { return requests_ != nullptr; }

  void advance();
  void take_answer(rejoin_message&& message);
  void on_lost(int rank, bool has_left);
  // For error messages: what the return of a lost rank waits for.
  std::string awaited(int rank) const;
  // True: progress depends on calls of advance().
  bool is_busy() const noexcept { return current_ || !asking_.empty() || !leaving_.empty(); }
  int descriptor() const noexcept { return requests_->descriptor(); }

 private:
  struct admission {
    int rank = -1;
    std::uint32_t incarnation = 0;
    std::uint32_t step = 0;
    std::vector<std::optional<byte_string>> parts{};  // answers of this step, by rank
    attended_time waited{};
    std::uint64_t heartbeat_ns = 0;
  };
  void take_event(return_event&& event);
  void begin_step(byte_string part);
  void check_requests(std::uint64_t now);
  void begin(int rank, std::uint64_t now);
  void check_replies(std::uint64_t now);
  void end_step();
  void give_up(const failure& reason);
  byte_string incarnations() const;
  std::string missing() const;
  template <class Body>
  void for_each_living(Body body) const {
    for (const auto& each : context_.peers)
      if (!each.is_dead && each.rank != context_.rank) body(each.rank);
  }

  messenger_context& context_;
  peer_watch& watch_;
  rejoin_messages& rejoin_messages_;
  rejoin_requests* requests_ = nullptr;
  std::map<int, attended_time> asking_;   // for how long
  std::map<int, attended_time> leaving_;  // ranks whose connection has ended: for how long
  std::map<int, std::uint32_t> last_incarnation_;
  std::optional<admission> current_;
  std::string opening_text_;
  std::uint64_t polled_ns_ = 0;
  unsigned rounds_ = 0;
};

}  // namespace pl::messaging
