// SPDX-License-Identifier: Apache-2.0
#include "crossovers.hpp"

#include <algorithm>

#include "cost_table.hpp"

namespace pl::link {
namespace {

// Nanoseconds of what is not a copy, from two processes' ping-pongs over UCX (design page of this folder).
constexpr double kPacketNs = 200;
constexpr double kHandshakeNs = 700;  // announcement, and its end
constexpr double kHostNsPerByte = 1.0 / 10;
// What the resident kernel needs more for memory of another GPU than of its own (two H200, docs/results/p2p): the latency of
// NVLink, and with one worker 12 GB/s instead of 40.
constexpr double kPeerNs = 1300;
constexpr double kPeerNsPerByte = 1.0 / 18;

double copy_cost(const copy::cost_table& costs, copy::direction way, copy::other_side side, std::size_t bytes) {
  return costs.cost(way, side, costs.pick(way, side, true, bytes), bytes);
}

double eager_cost(const copy::cost_table& costs, std::size_t bytes) {
  return kPacketNs + copy_cost(costs, copy::direction::to_host, copy::other_side::pageable, bytes) +
         static_cast<double>(bytes) * kHostNsPerByte +
         copy_cost(costs, copy::direction::to_device, copy::other_side::pageable, bytes);
}

// By a copy engine, or by the resident kernel, whose table knows its own GPU only.
double ipc_cost(const copy::cost_table& costs, std::size_t bytes) {
  const double by_copy_engine = copy_cost(costs, copy::direction::on_device, copy::other_side::peer_gpu, bytes);
  const double by_kernel = copy_cost(costs, copy::direction::on_device, copy::other_side::same_gpu, bytes) + kPeerNs +
                           kPeerNsPerByte * static_cast<double>(bytes);
  return kPacketNs + kHandshakeNs + std::min(by_copy_engine, by_kernel);
}

std::size_t whole_pages(std::size_t bytes) { return std::max<std::size_t>((bytes + 4095) & ~std::size_t{4095}, 4096); }

}  // namespace

crossovers crossovers::from(const messenger_options& wanted, const copy::cost_table* costs) {
  crossovers out;
  if (costs != nullptr) {
    out.origin = "from the copy planner's costs";
    std::size_t limit = 1 << 10;
    while (limit < kMostEager && eager_cost(*costs, limit * 2) <= ipc_cost(*costs, limit * 2)) limit *= 2;
    out.eager_device = out.ipc_from = limit;
  }
  if (wanted.eager_limit != 0) out.eager_host = out.eager_device = out.eager_shared_gpu = wanted.eager_limit;
  if (wanted.gdr_send_limit != 0) out.eager_device = out.eager_shared_gpu = wanted.gdr_send_limit;
  for (auto* limit : {&out.eager_host, &out.eager_device, &out.eager_shared_gpu}) *limit = std::min(*limit, kMostEager);
  out.ipc_from = wanted.ipc_threshold != 0 ? wanted.ipc_threshold : out.eager_device;
  if (wanted.ipc_threshold != 0) out.ipc_to_host_from = wanted.ipc_threshold;
  out.store_limit = wanted.gdr_receive_limit;
  if (wanted.chunk_bytes != 0) out.ring_chunk_bytes = out.network_chunk_bytes = whole_pages(wanted.chunk_bytes);
  // At least some of the largest packets, or the sender would wait for an answer after each.
  if (wanted.unexpected_bytes != 0) out.unexpected_bytes = std::max(wanted.unexpected_bytes, 4 * kMostEager);
  return out;
}

}  // namespace pl::link
