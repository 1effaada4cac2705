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
std::optional<status> engine::advance_barrier() {
  auto& of = barrier_;
  if (!of.is_open) of = {.number = of.number + 1, .is_open = true, .is_attended = of.is_attended};
  for (; of.distance < size_; of.distance *= 2, of.has_told = false) {
    const int to = (rank_ + of.distance) % size_, from = (rank_ - of.distance + size_) % size_;
    if (!of.has_told) {
      if (auto refused = refuses_peer(to)) return status(*std::move(refused));
      control(to, {.kind = frame_kind::barrier, .tag = of.number});
      of.has_told = true;
    }
    if (peer(from).barriers >= of.number && barrier_frames_ == 0) continue;
    if (peer(from).is_dead) return status(failure{ECONNRESET, format("rank %d is gone", from)});
    return std::nullopt;
  }
  of.is_open = false;
  return status{};
}

void engine::on_barrier(peer_state& from, const frame& head) {
  if (head.tag == from.barriers + 1) from.barriers = head.tag;
  else
    lost_.emplace_back(
        from.rank, format("is out of step: it told of barrier %llu where %llu was due",
                          static_cast<unsigned long long>(head.tag), static_cast<unsigned long long>(from.barriers + 1)));
}

}  // namespace pl::link
