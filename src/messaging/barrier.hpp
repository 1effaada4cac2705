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
  // Empty while the barrier is pending.
  std::optional<status> advance();
  void on_frame(peer_state& source, const frame& head);

 private:
  messenger_context& context_;
  packet_channel& channel_;
  peer_watch& watch_;
  std::uint64_t number_ = 0;  // of this barrier, or of the last
  int distance_ = 1;          // of this round: 1, 2, 4 ...
  bool is_open_ = false;
  bool has_sent_ = false;     // in this round
  bool is_attended_ = false;  // a thread waits for it
};

}  // namespace pl::messaging
