// SPDX-License-Identifier: Apache-2.0
#include "sim/pace.hpp"

#include <time.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "base/clock.hpp"
#include "sim/address_space.hpp"
#include "sim/device.hpp"
#include "sim/settings.hpp"

namespace pl::sim {
namespace {

constexpr std::size_t kMaxDevices = 16;
constexpr std::uint64_t kSpinNs = 80'000;  // the end of a wait: sleeping is 50 us late at times

enum link : std::size_t { to_device, to_host, out_to_peer, in_from_peer, memory, kLinks };

struct links_state {
  std::mutex mutex;
  rate_settings rates = read_rate_settings();
  std::array<std::array<std::uint64_t, kLinks>, kMaxDevices> busy_until_ns{};
  std::array<int, kMaxDevices> device_nodes{};
  struct range {
    std::uint64_t end;
    int node;
  };
  std::map<std::uint64_t, range> host_nodes;  // by first address; disjoint
  std::uint64_t copies = 0;

  links_state() {
    const auto boards = read_link_settings(kMaxDevices);
    for (const auto& d : devices())
      device_nodes[static_cast<std::size_t>(d.ordinal)] = boards[static_cast<std::size_t>(d.physical)].numa_node;
  }
};

links_state& state() {
  static auto* const instance = new links_state;
  return *instance;
}

// About normal, mean 0 and deviation 1, between -3 and 3: the sum of twelve uniform numbers.
double noise_at(std::uint64_t seed, std::uint64_t number) {
  double sum = -6;
  for (std::uint64_t i = 0; i < 12; ++i) {
    std::uint64_t z = (seed * 0x9E3779B97F4A7C15u + number * 12 + i + 1) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 29)) * 0x94D049BB133111EBu;
    sum += static_cast<double>((z ^ (z >> 32)) >> 11) / 9007199254740992.0;
  }
  return std::clamp(sum, -3.0, 3.0);
}

// What one copy's rate has instead of 1: the process's share, the copy's, and the board's.
double rate_factor_locked(links_state& s, int device) {
  double out = 1;
  if (s.rates.noise > 0)
    out = (1 + s.rates.noise * noise_at(s.rates.seed, 0)) * (1 + s.rates.noise * noise_at(s.rates.seed, ++s.copies));
  const auto* found = find_device(device);
  const auto factor =
      s.rates.board_factors.find(found != nullptr ? static_cast<std::size_t>(found->physical) : ~std::size_t{0});
  return factor == s.rates.board_factors.end() ? out : out * factor->second;
}

// -1: host memory.
int device_of(device_ptr address, int otherwise) {
  auto& space = address_space::instance();
  if (!space.is_device_address(address)) return -1;
  const auto found = space.find(address);
  return found != nullptr ? found->device_ordinal : otherwise;
}

int host_node_locked(const links_state& s, std::uint64_t address) {
  auto after = s.host_nodes.upper_bound(address);
  if (after == s.host_nodes.begin()) return -1;
  --after;
  return address < after->second.end ? after->second.node : -1;
}

struct crossing {
  double rate = 0;
  std::uint64_t* first = nullptr;   // when the link is free again
  std::uint64_t* second = nullptr;  // the receiving side of a copy between devices
};

crossing find_crossing(links_state& s, device_ptr destination, device_ptr source, int ordinal) {
  const int receiver = device_of(destination, ordinal), sender = device_of(source, ordinal);
  const auto free_at = [&s](int device, link link_kind) {
    return &s.busy_until_ns[static_cast<std::size_t>(device)][link_kind];
  };
  if (receiver < 0 && sender < 0) return {};
  if (receiver == sender) return {s.rates.local, free_at(receiver, memory), nullptr};
  if (receiver >= 0 && sender >= 0) return {s.rates.p2p, free_at(sender, out_to_peer), free_at(receiver, in_from_peer)};
  const int device = std::max(receiver, sender);
  const int node = host_node_locked(s, sender < 0 ? source : destination);
  const bool is_far = node >= 0 && node != s.device_nodes[static_cast<std::size_t>(device)];
  const double rate = sender < 0 ? s.rates.h2d : s.rates.d2h;
  return {is_far ? rate * s.rates.far : rate, free_at(device, sender < 0 ? to_device : to_host), nullptr};
}

}  // namespace

pacer::pacer(device_ptr destination, device_ptr source, std::size_t bytes, int ordinal) {
  links_state& s = state();
  if (!s.rates.any()) return;
  const std::lock_guard lock(s.mutex);
  const crossing over = find_crossing(s, destination, source, ordinal);
  if (over.rate <= 0) return;
  const double factor = rate_factor_locked(s, ordinal);
  std::uint64_t start_ns = std::max(monotonic_ns(), *over.first);
  if (over.second != nullptr) start_ns = std::max(start_ns, *over.second);
  end_ns_ = start_ns + static_cast<std::uint64_t>(static_cast<double>(bytes) / (over.rate * factor));  // GB/s are bytes/ns
  *over.first = end_ns_;
  if (over.second != nullptr) *over.second = end_ns_;
}

void pacer::wait() const {
  for (auto now_ns = monotonic_ns(); now_ns < end_ns_; now_ns = monotonic_ns()) {
    const std::uint64_t left_ns = end_ns_ - now_ns;
    if (left_ns <= kSpinNs) continue;
    const std::uint64_t sleep_ns = left_ns - kSpinNs;
    const timespec pause{static_cast<time_t>(sleep_ns / 1'000'000'000), static_cast<long>(sleep_ns % 1'000'000'000)};
    nanosleep(&pause, nullptr);
  }
}

void set_host_node(const void* pointer, std::size_t bytes, int node) {
  links_state& s = state();
  const std::lock_guard lock(s.mutex);
  const auto first = reinterpret_cast<std::uint64_t>(pointer);
  const auto end = first + bytes;
  // What an older declaration says about other addresses stays.
  for (auto old = s.host_nodes.begin(); old != s.host_nodes.end();) {
    const auto [old_first, old_range] = *old;
    if (old_range.end <= first || old_first >= end) {
      ++old;
      continue;
    }
    old = s.host_nodes.erase(old);
    if (old_first < first) s.host_nodes[old_first] = {first, old_range.node};
    if (old_range.end > end) s.host_nodes[end] = old_range;
  }
  if (node >= 0 && bytes != 0) s.host_nodes[first] = {end, node};
}

int host_node(const void* pointer) {
  links_state& s = state();
  const std::lock_guard lock(s.mutex);
  return host_node_locked(s, reinterpret_cast<std::uint64_t>(pointer));
}

int device_node(int ordinal) {
  links_state& s = state();
  const std::lock_guard lock(s.mutex);
  return find_device(ordinal) != nullptr ? s.device_nodes[static_cast<std::size_t>(ordinal)] : -1;
}

// For programs that test placement on a machine with one NUMA node. After cuInit.
PL_SIM_EXPORT void peerlaneSimSetHostNode(const void* pointer, std::size_t bytes, int node) {
  set_host_node(pointer, bytes, node);
}
PL_SIM_EXPORT int peerlaneSimHostNode(const void* pointer) { return host_node(pointer); }

PL_SIM_EXPORT void peerlaneSimSetDeviceNode(int ordinal, int node) {
  links_state& s = state();
  const std::lock_guard lock(s.mutex);
  if (find_device(ordinal) != nullptr) s.device_nodes[static_cast<std::size_t>(ordinal)] = node;
}
PL_SIM_EXPORT int peerlaneSimDeviceNode(int ordinal) { return device_node(ordinal); }

// NUMA nodes of the simulated machine: as many as its devices name, and one more for host memory far from all of them
// where a rate for that is set.
PL_SIM_EXPORT int peerlaneSimNodeCount() {
  links_state& s = state();
  const std::lock_guard lock(s.mutex);
  int highest = 0;
  for (std::size_t i = 0; i < devices().size(); ++i) highest = std::max(highest, s.device_nodes[i]);
  const bool has_far = s.rates.far != 1;
  return std::max(highest + 1, has_far ? 2 : 1);
}

// 1: PEERLANE_SIM_RATES says how fast copies are; 0: they take what this CPU takes, which says nothing about a link.
PL_SIM_EXPORT int peerlaneSimHasRates() { return state().rates.any() ? 1 : 0; }

}  // namespace pl::sim
