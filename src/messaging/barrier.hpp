// SPDX-License-Identifier: Apache-2.0
// Dissemination barrier: in round k each process sends to the rank 2^k after it and waits for the rank 2^k before it. The
// barrier ends only when its frames have been sent, because a verbs connection that is still being set up needs further
// calls and the application may not make another one soon.
//
// A process sends to any other at most once in a barrier, with the number of the barrier. This lets the next call continue a
// barrier that timed out, and detects a process that is at another barrier.
//
// Owns: the position in the current barrier. Threads: the messenger's lock guards all calls.
// Errors: ECONNRESET: a process that takes part is gone.
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
  // A thread must call enter() before advance(), and leave() after the barrier. False: another thread is inside; this thread
  // must wait for the next barrier.
  bool enter() noexcept { return !std::exchange(is_attended_, true); }
  void leave() noexcept { is_attended_ = false; }
  // Blocks new barriers until continue_at(), because a process is gone and the others may be at different barriers. A
  // barrier in progress may still end. The next barrier must have a higher number than any that a process has entered.
  void stop(std::string reason) { stopped_ = std::move(reason); }
  // A new process has a rank: drops the barrier in progress, in which it does not take part.
  void abandon() noexcept { is_open_ = false; }
  void continue_at(std::uint64_t number);
  std::uint64_t number() const noexcept { return number_; }
  // Makes progress. Returns the result of the barrier; empty while it is pending.
  std::optional<status> advance();
  void on_frame(peer_state& source, const frame& head);

 private:
  messenger_context& context_;
  packet_channel& channel_;
  peer_watch& watch_;
  std::string stopped_;       // reason of stop(); empty: not stopped
  bool may_skip_ = false;     // continue_at() was called: a peer's number may be ahead by more than one
  std::uint64_t number_ = 0;  // of the current barrier, or of the last one
  int distance_ = 1;          // of this round: 1, 2, 4 ...
  bool is_open_ = false;
  bool has_sent_ = false;     // in this round
  bool is_attended_ = false;  // a thread waits for it
};

}  // namespace pl::messaging
