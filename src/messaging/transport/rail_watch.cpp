// SPDX-License-Identifier: Apache-2.0
// How a rail set detects that a rail has failed, and what it does then.
//
// UCX reports a connection once the kernel gives it up, which takes minutes with TCP on a dead wire. Two signs appear
// earlier: the link is down at this end, or one rail is silent while the peer answers pings on another. A peer that is
// stopped, or makes no calls, answers on no rail, so its rails stay up.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "messaging/transport/rail_kinds.hpp"
#include "messaging/transport/rail_set.hpp"
#include "os/device_io.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kWatchIntervalNs = 20'000'000;  // between two checks
constexpr std::uint64_t kLinkNs = 50'000'000;           // age of a sent unit at which the link is checked
constexpr std::uint64_t kSilentNs = 1'000'000'000;      // age of a sent unit at which the other rails are pinged
constexpr std::uint64_t kPingNs = 250'000'000;          // between two pings on a rail
constexpr std::uint64_t kApartNs = 500'000'000;         // minimum time between two pings whose answers are counted

constexpr const char* kLinkFile = "/carrier";  // lint:allow(text) the kernel's name

std::string state_file(const std::string& device) { return "/sys/class/net/" + device + kLinkFile; }

}  // namespace

bool has_link_state(const std::string& device) {
  return device.find('/') == std::string::npos && access(state_file(device).c_str(), R_OK) == 0;
}

// The file of an interface that is switched off cannot be read.
bool has_link(const std::string& device) {
  const unique_fd file(real_device_io(), open(state_file(device).c_str(), O_RDONLY | O_CLOEXEC));
  char state = '0';
  return file && read(file.get(), &state, 1) == 1 && state == '1';
}

bool rail_set::is_link_down(unsigned rail) const { return has_link_state_[rail] && !has_link(devices_[rail]); }

bool rail_set::has_outstanding() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& remote) { return remote.has_outstanding(); });
}

void rail_set::watch_rails() {
  const auto now = monotonic_ns();
  if (now - watched_ns_ < kWatchIntervalNs) return;
  watched_ns_ = now;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank)
    for (unsigned rail = 0; rail < rails(); ++rail)
      if (peer(rank).rails[rail].is_up && peer(rank).has_other_rail(rail)) watch_rail(rank, rail, now);
}

void rail_set::watch_rail(int rank, unsigned rail, std::uint64_t now) {
  auto& state = peer(rank).rails[rail];
  const auto oldest = peer(rank).oldest_ns(rail);
  if (oldest == 0) return state.silent.end();
  const auto last_sign_ns = std::max(oldest, state.last_received_ns);
  if (now - last_sign_ns >= kLinkNs && is_link_down(rail)) failing_.push_back({rank, rail, "its link is down"});
  else if (now - last_sign_ns >= kSilentNs) ping_others(rank, rail, now);
}

void rail_set::ping_others(int rank, unsigned silent, std::uint64_t now) {
  for (unsigned rail = 0; rail < rails(); ++rail) {
    auto& state = peer(rank).rails[rail];
    if (rail == silent || !state.is_up || now - state.pinged_ns < kPingNs) continue;
    state.pinged_ns = now;
    send_control(rank, rail, kPing, now);
  }
}

void rail_set::take_pong(int rank, std::uint64_t pinged_ns) {
  auto& remote = peer(rank);
  for (unsigned rail = 0; rail < rails(); ++rail) {
    auto& state = remote.rails[rail];
    const auto oldest = remote.oldest_ns(rail);
    const bool was_silent = state.is_up && oldest != 0 && std::max(oldest, state.last_received_ns) + kSilentNs <= pinged_ns;
    if (was_silent && state.silent.note_answer(pinged_ns, kApartNs))
      failing_.push_back({rank, rail, "it is silent, and another one is not"});
  }
}

void rail_set::fail_rail(const failing_rail& failed) {
  auto& remote = peer(failed.rank);
  if (!std::exchange(remote.rails[failed.rail].is_up, false)) return;
  rails_[failed.rail]->close(failed.rank, true);
  const auto other = remote.first_rail();
  if (!other || handler_->has_left(failed.rank)) return handler_->on_lost(failed.rank, failed.reason.c_str());
  PL_LOG(warn, "rail %s to rank %d has failed (%s): its messages go by %s", devices_[failed.rail].c_str(), failed.rank,
         failed.reason.c_str(), devices_[*other].c_str());
  send_control(failed.rank, *other, kRailDown, failed.rail);
  note_due(failed.rank, 0);  // an acknowledgement may have been lost with the rail
  retransmit(failed.rank, failed.rail);
}

void rail_set::retransmit(int rank, unsigned failed) {
  auto& remote = peer(rank);
  remote.rails[failed].load = 0;
  for (auto& [number, kept] : remote.packets)
    if (kept->rail == failed) transmit(*kept, *remote.first_rail());
  for (auto& [tag, kept] : remote.parts)
    if (kept->rail == failed) transmit(*kept, *remote.free_rail());
}

}  // namespace pl::messaging
