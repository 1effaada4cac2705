// SPDX-License-Identifier: Apache-2.0
// Dissemination barriers: in round k each process sends to the rank 2^k after it and waits for the rank 2^k before it.
// The barrier ends only when its frames have left, because a verbs connection that is still being set up needs further
// calls, and the next one may be far away.
//
// A process sends to another one at most once in a barrier, with the barrier's number. So the next call continues a
// barrier that timed out, and a process that is at another barrier is detected.
#include "base/text.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::messaging {

// Empty while the barrier is pending.
std::optional<status> messenger_core::advance_barrier() {
  auto& state = barrier_;
  if (!state.is_open) state = {.number = state.number + 1, .is_open = true, .is_attended = state.is_attended};
  for (; state.distance < context_.size; state.distance *= 2, state.has_sent = false) {
    const int destination_rank = (context_.rank + state.distance) % context_.size,
              source_rank = (context_.rank - state.distance + context_.size) % context_.size;
    if (!state.has_sent) {
      if (auto refused = context_.refuses_peer(destination_rank)) return status(*std::move(refused));
      channel_.send_control(destination_rank, {.kind = frame_kind::barrier, .tag = state.number});
      state.has_sent = true;
    }
    if (context_.peer(source_rank).barriers >= state.number && channel_.barrier_frames() == 0) continue;
    if (context_.peer(source_rank).is_dead) return status(failure{ECONNRESET, format("rank %d is gone", source_rank)});
    return std::nullopt;
  }
  state.is_open = false;
  return status{};
}

void messenger_core::on_barrier(peer_state& source, const frame& head) {
  if (head.tag == source.barriers + 1) source.barriers = head.tag;
  else
    watch_.report(source.rank,
                  format("is out of step: it told of barrier %llu where %llu was due",
                         static_cast<unsigned long long>(head.tag), static_cast<unsigned long long>(source.barriers + 1)));
}

}  // namespace pl::messaging
