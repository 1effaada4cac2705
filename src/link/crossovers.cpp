// SPDX-License-Identifier: Apache-2.0
#include "crossovers.hpp"

#include <algorithm>

#include "cost_table.hpp"
#include "text.hpp"

namespace pl::link {
namespace {

// What the resident kernel needs more for memory of another GPU than of its own (two H200, docs/results/p2p): the latency of
// NVLink, and with one worker 12 GB/s instead of 40.
constexpr double kPeerNs = 1300;
constexpr double kPeerNsPerByte = 1.0 / 18;

double copy_cost(const copy::cost_table& costs, copy::direction way, copy::other_side side, std::size_t bytes) {
  return costs.cost(way, side, costs.pick(way, side, true, bytes), bytes);
}

double eager_cost(const message_costs& messages, const copy::cost_table& costs, std::size_t bytes) {
  return messages.packet_ns + copy_cost(costs, copy::direction::to_host, copy::other_side::pageable, bytes) +
         static_cast<double>(bytes) * messages.eager_ns_per_byte +
         copy_cost(costs, copy::direction::to_device, copy::other_side::pageable, bytes);
}

// By a copy engine, or by the resident kernel, whose table knows its own GPU only.
double ipc_cost(const message_costs& messages, const copy::cost_table& costs, std::size_t bytes) {
  const double by_copy_engine = copy_cost(costs, copy::direction::on_device, copy::other_side::peer_gpu, bytes);
  const double by_kernel = copy_cost(costs, copy::direction::on_device, copy::other_side::same_gpu, bytes) + kPeerNs +
                           kPeerNsPerByte * static_cast<double>(bytes);
  return messages.packet_ns + messages.handshake_ns + std::min(by_copy_engine, by_kernel);
}

// Through chunks that a network carries: the same copies at both ends, from and to pinned memory.
double chunk_cost(const message_costs& messages, const copy::cost_table& costs, std::size_t bytes) {
  return messages.packet_ns + messages.handshake_ns + static_cast<double>(bytes) * messages.chunks_ns_per_byte +
         copy_cost(costs, copy::direction::to_host, copy::other_side::pinned, bytes) +
         copy_cost(costs, copy::direction::to_device, copy::other_side::pinned, bytes);
}

// The largest power of two up to which `small` costs no more than `large`.
template <class Small, class Large>
std::size_t crossing(Small small, Large large) {
  std::size_t limit = 1 << 10;
  while (limit < crossovers::kMostEager && small(limit * 2) <= large(limit * 2)) limit *= 2;
  return limit;
}

std::size_t host_crossing(const message_costs& messages) {
  return crossing(
      [&](std::size_t bytes) { return static_cast<double>(bytes) * messages.eager_ns_per_byte; },
      [&](std::size_t bytes) { return messages.handshake_ns + static_cast<double>(bytes) * messages.chunks_ns_per_byte; });
}

std::string words_of(const char* where, const std::optional<message_costs>& messages) {
  if (!messages) return "";
  return format("; %s: packet %.2f us, handshake %.2f us, %.3f ns/B eager, %.3f ns/B in chunks", where,
                messages->packet_ns / 1e3, messages->handshake_ns / 1e3, messages->eager_ns_per_byte,
                messages->chunks_ns_per_byte);
}

std::size_t whole_pages(std::size_t bytes) { return std::max<std::size_t>((bytes + 4095) & ~std::size_t{4095}, 4096); }

}  // namespace

crossovers crossovers::from(const messenger_options& wanted, const copy::cost_table* costs,
                            const handshake_costs* messages) {
  crossovers out;
  const auto near = messages != nullptr ? messages->near : std::nullopt;
  const auto far = messages != nullptr ? messages->far : std::nullopt;
  if (near) out.eager_host = out.eager_host_network = host_crossing(*near);
  if (far) out.eager_host_network = host_crossing(*far);
  if (costs != nullptr) {
    out.origin = "from the copy planner's costs";
    const message_costs here = near.value_or(message_costs{});
    out.eager_device = out.eager_device_network = crossing([&](std::size_t n) { return eager_cost(here, *costs, n); },
                                                           [&](std::size_t n) { return ipc_cost(here, *costs, n); });
    if (far)
      out.eager_device_network = crossing([&](std::size_t n) { return eager_cost(*far, *costs, n); },
                                          [&](std::size_t n) { return chunk_cost(*far, *costs, n); });
  }
  if (near || far)
    out.origin = (costs != nullptr ? out.origin + " and " : "from ") + "what messages cost here (" + messages->origin +
                 words_of("node", near) + words_of("network", far) + ")";
  if (wanted.eager_limit != 0)
    out.eager_host = out.eager_host_network = out.eager_device = out.eager_device_network = out.eager_shared_gpu =
        wanted.eager_limit;
  if (wanted.gdr_send_limit != 0) out.eager_device = out.eager_device_network = out.eager_shared_gpu = wanted.gdr_send_limit;
  for (auto* limit :
       {&out.eager_host, &out.eager_host_network, &out.eager_device, &out.eager_device_network, &out.eager_shared_gpu})
    *limit = std::min(*limit, kMostEager);
  out.ipc_from = wanted.ipc_threshold != 0 ? wanted.ipc_threshold : out.eager_device;
  if (wanted.ipc_threshold != 0) out.ipc_to_host_from = wanted.ipc_threshold;
  out.store_limit = wanted.gdr_receive_limit;
  if (wanted.chunk_bytes != 0) out.ring_chunk_bytes = out.network_chunk_bytes = whole_pages(wanted.chunk_bytes);
  // At least some of the largest packets, or the sender would wait for an answer after each.
  if (wanted.unexpected_bytes != 0) out.unexpected_bytes = std::max(wanted.unexpected_bytes, 4 * kMostEager);
  return out;
}

}  // namespace pl::link
