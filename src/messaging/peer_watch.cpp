// SPDX-License-Identifier: Apache-2.0
#include "messaging/peer_watch.hpp"

#include <algorithm>

#include "base/clock.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kCheckDeathsNs = 2'000'000;
constexpr std::uint64_t kDepartureNs = 1'000'000'000;  // limit of the wait for data that a peer sent before it left

}  // namespace

void peer_watch::report_leaving(int rank) { leaving_.emplace_back(rank, monotonic_ns() + kDepartureNs); }

bool peer_watch::check() {
  const auto now = monotonic_ns();
  if (now - last_check_ns_ < kCheckDeathsNs) return false;
  last_check_ns_ = now;
  for (const int rank : deaths_.collect())
    if (!context_.peer(rank).has_left) report(rank, "has ended: its process is gone");
  return true;
}

// The last check is more recent than the time in which a process number can be reused.
bool peer_watch::has_ended(const peer_state& remote) {
  check();
  return remote.is_dead ||
         std::any_of(lost_.begin(), lost_.end(), [&](const auto& each) { return each.first == remote.rank; });
}

void peer_watch::report_ended() {
  const auto now = monotonic_ns();
  std::erase_if(leaving_, [&](const auto& each) {
    bool is_busy = false;
    context_.operations.for_each(
        [&](const operation& op) { is_busy = is_busy || (op.peer == each.first && op.state == operation_state::moving); });
    if (is_busy && now < each.second) return false;
    report(each.first, "has left: it closed its messenger");
    return true;
  });
}

std::pair<int, std::string> peer_watch::take_lost() {
  auto last = std::move(lost_.back());
  lost_.pop_back();
  return last;
}

}  // namespace pl::messaging
