// SPDX-License-Identifier: Apache-2.0
// Dissemination barriers: in round k each process sends to the rank 2^k after it and waits for the rank 2^k before it.
// The barrier ends only when its frames have left, because a verbs connection that is still being set up needs further
// calls, and the next one may be far away.
//
// A process sends to another one at most once in a barrier, with the barrier's number. So the next call continues a
// barrier that timed out, and a process that is at another barrier is detected.
//
// Owns: the position in the current barrier. Threads: the messenger's lock guards all calls.
// Errors: ECONNRESET a process that it needs is gone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "messaging/packet_channel.hpp"

namespace pl::messaging {

class dissemination_barrier {
 public:
  dissemination_barrier(messenger_context& context, packet_channel& channel, peer_watch& watch)
      : context_(context), channel_(channel), watch_(watch) {}
  // A thread must enter before it advances. False: another one is inside, and this one waits for the next barrier.
  bool enter() noexcept { return !std::exchange(is_attended_, true); }
  void leave() noexcept { is_attended_ = false; }
  // No barrier is entered from now on until continue_at(): a process has gone, and those that are left may be at different
  // barriers. The next one has a number above all that any of them has entered. The one under way ends as it can.
  void stop(std::string reason) { stopped_ = std::move(reason); }
  // Another process is a rank now: the barrier under way was not with it.
  void abandon() noexcept { is_open_ = false; }
  void continue_at(std::uint64_t number);
  std::uint64_t number() const noexcept { return number_; }
  // Empty while the barrier is pending.
  std::optional<status> advance();
  void on_frame(peer_state& source, const frame& head);

 private:
  messenger_context& context_;
  packet_channel& channel_;
  peer_watch& watch_;
  std::string stopped_;       // why; empty: it is not
  bool may_skip_ = false;     // continue_at() was called: a peer's number may be ahead by more than one
  std::uint64_t number_ = 0;  // of this barrier, or of the last
  int distance_ = 1;          // of this round: 1, 2, 4 ...
  bool is_open_ = false;
  bool has_sent_ = false;     // in this round
  bool is_attended_ = false;  // a thread waits for it
};

}  // namespace pl::messaging
