// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/rail_peer.hpp"

#include <algorithm>

namespace pl::messaging {

bool arrivals::accept(std::uint64_t number) {
  if (number < next_ || number - next_ > kMaxPacketsAhead || !ahead_.insert(number).second) return false;
  while (!ahead_.empty() && *ahead_.begin() == next_) {
    ahead_.erase(ahead_.begin());
    ++next_;
  }
  return true;
}

bool silence::note_answer(std::uint64_t pinged_ns, std::uint64_t apart_ns) {
  if (first_ns_ == 0) first_ns_ = pinged_ns;
  // The answer on another rail may be to an earlier ping.
  return pinged_ns >= first_ns_ && pinged_ns - first_ns_ >= apart_ns;
}

std::optional<unsigned> rail_peer::first_rail() const {
  for (unsigned i = 0; i < rails.size(); ++i)
    if (rails[i].is_up) return i;
  return std::nullopt;
}

std::optional<unsigned> rail_peer::free_rail() const {
  std::optional<unsigned> found;
  for (unsigned i = 0; i < rails.size(); ++i)
    if (rails[i].is_up && (!found || rails[i].load < rails[*found].load)) found = i;
  return found;
}

bool rail_peer::has_other_rail(unsigned rail) const {
  for (unsigned i = 0; i < rails.size(); ++i)
    if (i != rail && rails[i].is_up) return true;
  return false;
}

std::uint64_t rail_peer::oldest_ns(unsigned rail) const {
  std::uint64_t oldest = 0;
  for (const sent_units* const each : {&packets, &parts})
    for (const auto& [number, unit] : *each)
      if (unit->rail == rail && (oldest == 0 || unit->sent_ns < oldest)) oldest = unit->sent_ns;
  return oldest;
}

}  // namespace pl::messaging
