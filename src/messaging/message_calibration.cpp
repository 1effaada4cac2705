// SPDX-License-Identifier: Apache-2.0
#include "messaging/message_calibration.hpp"

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kPhaseNs = 10'000'000;  // four of them for each kind of pair
constexpr std::size_t kMaxRounds = 400;
constexpr std::size_t kMinRounds = 16;
constexpr std::size_t kSmall = 64;
constexpr std::size_t kLarge = 16 << 10;
constexpr std::chrono::milliseconds kTimeout{2000};
constexpr std::uint64_t kTag = 0x63616c6962726174;

// Exchanged before and after the measurement.
struct report {
  std::int32_t node = 0;  // the lowest rank of its node
  std::uint8_t has_near = 0, has_far = 0;
  message_costs near, far;
};

class ping_pong {
 public:
  ping_pong(messenger& communicator, int peer, bool leads, thresholds& limits)
      : communicator_(communicator), peer_(peer), leads_(leads), thresholds_(limits), data_(kLarge) {}

  // Only the leader's result is valid. Empty: a message failed, or the other process has ended.
  std::optional<message_costs> measure() {
    const auto small = phase(kSmall, true), large = phase(kLarge, true);
    const auto announced = phase(kSmall, false), chunked = phase(kLarge, false);
    if (!small || !large || !announced || !chunked) return std::nullopt;
    constexpr double kBetween = kLarge - kSmall;
    message_costs out;
    out.eager_ns_per_byte = std::max(0.0, *large - *small) / kBetween;
    out.packet_ns = std::max(0.0, *small - kSmall * out.eager_ns_per_byte);
    out.chunks_ns_per_byte = std::max(0.0, *chunked - *announced) / kBetween;
    out.handshake_ns = std::max(0.0, *announced - *small);
    return out;
  }

 private:
  // One-way time in nanoseconds: the lower quartile, because other load only adds to it.
  std::optional<double> phase(std::size_t bytes, bool is_eager) {
    thresholds_.eager_host = thresholds_.eager_host_network = is_eager ? thresholds::kMaxEager : 0;
    std::vector<double> halves;
    const auto begin = monotonic_ns();
    for (bool goes_on = true; goes_on;) {
      const auto start = monotonic_ns();
      goes_on = halves.size() < kMinRounds || (halves.size() < kMaxRounds && start - begin < kPhaseNs);
      if (leads_ ? !send(bytes, goes_on) || !receive(bytes) : !receive(bytes)) return std::nullopt;
      if (!leads_) {
        goes_on = data_[0] != std::byte{0};
        if (!send(bytes, goes_on)) return std::nullopt;
      }
      halves.push_back(static_cast<double>(monotonic_ns() - start) / 2);
    }
    const auto quarter = halves.begin() + static_cast<std::ptrdiff_t>(halves.size() / 4);
    std::nth_element(halves.begin(), quarter, halves.end());
    return *quarter;
  }
  bool send(std::size_t bytes, bool goes_on) {
    data_[0] = std::byte{goes_on};
    return communicator_.send(peer_, host_buffer(data_.data(), bytes), kTag, kTimeout).ok();
  }
  bool receive(std::size_t bytes) {
    return communicator_.recv(peer_, host_buffer(data_.data(), bytes), kTag, kWholeTag, kTimeout).ok();
  }

  messenger& communicator_;
  int peer_;
  bool leads_;
  thresholds& thresholds_;
  byte_string data_;
};

result<std::vector<report>> exchange(bootstrap& group, const report& mine) {
  auto all = group.all_gather(std::as_bytes(std::span(&mine, 1)));
  if (!all) return std::move(all).error();
  std::vector<report> out(all->size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if ((*all)[i].size() != sizeof(report))
      return failure{EPROTO, format("rank %zu runs another version of this library", i)};
    std::memcpy(&out[i], (*all)[i].data(), sizeof(report));
  }
  return out;
}

int lowest_of_node(const messenger& communicator) {
  for (int rank = 0; rank < communicator.rank(); ++rank)
    if (communicator.is_same_node(rank)) return rank;
  return communicator.rank();
}

// Returns the next rank after `first` that is on the same node, or on another one; -1: none.
int partner_of(const std::vector<report>& all, int first, bool on_its_node) {
  const auto index = static_cast<std::size_t>(first);
  for (std::size_t i = index + 1; i < all.size(); ++i)
    if ((all[i].node == all[index].node) == on_its_node) return static_cast<int>(i);
  return -1;
}

// Measures one pair if this process belongs to it. Returns the leader's result.
std::optional<message_costs> bounce(messenger& communicator, int leader, int other, thresholds& limits) {
  if (other < 0 || (communicator.rank() != leader && communicator.rank() != other)) return std::nullopt;
  const bool leads = communicator.rank() == leader;
  const auto found = ping_pong(communicator, leads ? other : leader, leads, limits).measure();
  if (!found) PL_LOG(warn, "handshakes of ranks %d and %d could not be measured", leader, other);
  return leads ? found : std::nullopt;
}

}  // namespace

result<handshake_costs> measure_handshakes(messenger& communicator, bootstrap& group, thresholds& limits,
                                           const std::string& key) {
  const thresholds kept = limits;
  auto known = load_handshakes(key);
  report mine;
  mine.node = lowest_of_node(communicator);
  mine.has_near = known.near.has_value();
  mine.has_far = known.far.has_value();
  auto before = exchange(group, mine);
  if (!before) return std::move(before).error();

  const auto begin = monotonic_ns();
  const auto& of_node = (*before)[static_cast<std::size_t>(mine.node)];
  std::optional<message_costs> near, far;
  if (of_node.has_near == 0) near = bounce(communicator, mine.node, partner_of(*before, mine.node, true), limits);
  // Another pair may still measure: CPUs and queues must be idle before hosts are measured.
  if (auto done = group.barrier(); !done) return std::move(done).error();
  if (before->front().has_far == 0) far = bounce(communicator, 0, partner_of(*before, 0, false), limits);
  const double took_ms = static_cast<double>(monotonic_ns() - begin) / 1e6;
  limits = kept;

  if (near || far) {
    if (near) known.near = near;
    if (far) known.far = far;
    if (auto saved = save_handshakes(known, key); !saved) PL_LOG(warn, "%s", saved.error().message.c_str());
  }
  mine.has_near = known.near.has_value();
  mine.has_far = known.far.has_value();
  mine.near = known.near.value_or(message_costs{});
  mine.far = known.far.value_or(message_costs{});
  auto after = exchange(group, mine);
  if (!after) return std::move(after).error();

  // All processes of a node use the same costs, and all nodes the same network costs.
  const auto& of_near = (*after)[static_cast<std::size_t>(mine.node)];
  const auto& of_far = after->front();
  handshake_costs out;
  if (of_near.has_near != 0) out.near = of_near.near;
  if (of_far.has_far != 0) out.far = of_far.far;
  const bool is_new = (of_node.has_near == 0 && out.near) || (before->front().has_far == 0 && of_far.has_far != 0);
  out.origin = is_new                 ? format("measured now in %.0f ms", took_ms)
               : known.origin.empty() ? "kept by another rank"
                                      : known.origin;
  return out;
}

}  // namespace pl::messaging
