// SPDX-License-Identifier: Apache-2.0
// Barriers by dissemination: in round k everyone tells the process 2^k further on, and hears from the one 2^k before. What
// was told has left at the end: a connection that verbs still make needs our calls, and there may be none for long.
//
// Each process tells each other one at most once in a barrier, with the barrier's number. So a barrier that timed out goes
// on where it was with the next call, and a process that is at another one is noticed.
#include "base/text.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::link {

// Nothing while it goes on.
std::optional<status> messenger_core::advance_barrier() {
  auto& state = barrier_;
  if (!state.is_open) state = {.number = state.number + 1, .is_open = true, .is_attended = state.is_attended};
  for (; state.distance < size_; state.distance *= 2, state.has_sent = false) {
    const int destination_rank = (rank_ + state.distance) % size_, source_rank = (rank_ - state.distance + size_) % size_;
    if (!state.has_sent) {
      if (auto refused = refuses_peer(destination_rank)) return status(*std::move(refused));
      send_control(destination_rank, {.kind = frame_kind::barrier, .tag = state.number});
      state.has_sent = true;
    }
    if (peer(source_rank).barriers >= state.number && barrier_frames_ == 0) continue;
    if (peer(source_rank).is_dead) return status(failure{ECONNRESET, format("rank %d is gone", source_rank)});
    return std::nullopt;
  }
  state.is_open = false;
  return status{};
}

void messenger_core::on_barrier(peer_state& source, const frame& head) {
  if (head.tag == source.barriers + 1) source.barriers = head.tag;
  else
    lost_.emplace_back(source.rank, format("is out of step: it told of barrier %llu where %llu was due",
                                           static_cast<unsigned long long>(head.tag),
                                           static_cast<unsigned long long>(source.barriers + 1)));
}

}  // namespace pl::link
