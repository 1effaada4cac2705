// SPDX-License-Identifier: Apache-2.0
#include "messaging/thresholds.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "copy/cost_table.hpp"

namespace pl::messaging {
namespace {

// Extra cost of the copy kernel for memory of another GPU (two H200, docs/results/p2p): the latency of NVLink, and 12
// GB/s instead of 40 with one worker.
constexpr double kPeerNs = 1300;
constexpr double kPeerNsPerByte = 1.0 / 18;

double copy_cost(const copy::cost_table& costs, copy::direction way, copy::other_side side, std::size_t bytes) {
  return costs.cost(way, side, costs.pick(way, side, copy::executor::kernel, bytes), bytes);
}

// Extra cost of a byte of GPU memory through the shm queue, beyond its copies: the queue's cache lines come from the
// other CPU while the mapping is read and written. With many messages pending both CPUs pay it, where a copy engine
// would do the work (two H200: 4 KiB 4.6 us, 8 KiB 8.0 and 1.2 GB/s with a window, through IPC 7.9 and 2.5).
constexpr double kQueueNsPerByte = 0.35;

double eager_cost(const message_costs& messages, const copy::cost_table& costs, std::size_t bytes) {
  return messages.packet_ns + copy_cost(costs, copy::direction::to_host, copy::other_side::pageable, bytes) +
         static_cast<double>(bytes) * messages.eager_ns_per_byte +
         copy_cost(costs, copy::direction::to_device, copy::other_side::pageable, bytes);
}

// With a copy engine or the copy kernel, whose table covers only its own GPU. A CPU cannot access another process's GPU
// memory.
double ipc_cost(const message_costs& messages, const copy::cost_table& costs, std::size_t bytes) {
  constexpr auto kWay = copy::direction::on_device;
  const double by_copy_engine = costs.cost(kWay, copy::other_side::peer_gpu, {copy::method::copy_engine, 1}, bytes);
  const double by_kernel = costs.cost(kWay, copy::other_side::same_gpu, {copy::method::engine_copy, 1}, bytes) + kPeerNs +
                           kPeerNsPerByte * static_cast<double>(bytes);
  return messages.packet_ns + messages.handshake_ns + std::min(by_copy_engine, by_kernel);
}

// With a DMA channel of the receiver's GPU, from memory of `side`.
double dma_cost(const message_costs& messages, const copy::cost_table& costs, copy::other_side side, std::size_t bytes) {
  return messages.packet_ns + messages.handshake_ns +
         costs.cost(copy::direction::on_device, side, {copy::method::dma_channel, 1}, bytes);
}

// While another process uses the same GPU: CPU loads and stores only.
double by_cpu(const copy::cost_table& costs, copy::direction way, std::size_t bytes) {
  const auto method = way == copy::direction::to_host ? copy::method::cpu_load : copy::method::cpu_store;
  return costs.cost(way, copy::other_side::pageable, {method, 1}, bytes);
}

double shared_eager_cost(const message_costs& messages, const copy::cost_table& costs, std::size_t bytes) {
  return messages.packet_ns + by_cpu(costs, copy::direction::to_host, bytes) +
         static_cast<double>(bytes) * messages.eager_ns_per_byte + by_cpu(costs, copy::direction::to_device, bytes);
}

// In chunks of a quarter, at least 16 KiB: only the last chunk's stores do not overlap with loads.
double shared_ring_cost(const message_costs& messages, const copy::cost_table& costs, std::size_t bytes) {
  const std::size_t last = std::min(bytes, std::max<std::size_t>(16 << 10, bytes / 4));
  return messages.packet_ns + messages.handshake_ns + by_cpu(costs, copy::direction::to_host, bytes) +
         static_cast<double>(bytes) * messages.chunks_ns_per_byte + by_cpu(costs, copy::direction::to_device, last);
}

// The size up to which CPU loads cost no more than copy engines, which need two context switches of the GPU.
std::size_t shared_cpu_limit(const copy::cost_table& costs) {
  constexpr double kChangesNs = 250'000;  // two of 147 us, which partly overlap (two processes on one H100)
  constexpr std::size_t kStep = 64 << 10, kMax = 256 << 10;
  std::size_t limit = kStep;
  while (limit < kMax && by_cpu(costs, copy::direction::to_host, limit + kStep) <= kChangesNs) limit += kStep;
  return limit;
}

// Through chunks that UCX carries, with copies to and from pinned memory at both ends.
double chunk_cost(const message_costs& messages, const copy::cost_table& costs, std::size_t bytes) {
  return messages.packet_ns + messages.handshake_ns + static_cast<double>(bytes) * messages.chunks_ns_per_byte +
         copy_cost(costs, copy::direction::to_host, copy::other_side::pinned, bytes) +
         copy_cost(costs, copy::direction::to_device, copy::other_side::pinned, bytes);
}

// The largest power of two up to which `small` costs no more than `large`.
template <class Small, class Large>
std::size_t crossing(Small small, Large large) {
  std::size_t limit = 1 << 10;
  while (limit < thresholds::kMaxEager && small(limit * 2) <= large(limit * 2)) limit *= 2;
  return limit;
}

std::size_t host_crossing(const message_costs& messages) {
  return crossing(
      [&](std::size_t bytes) { return static_cast<double>(bytes) * messages.eager_ns_per_byte; },
      [&](std::size_t bytes) { return messages.handshake_ns + static_cast<double>(bytes) * messages.chunks_ns_per_byte; });
}

std::string words_of(const char* scope, const std::optional<message_costs>& messages) {
  if (!messages) return "";
  return format("; %s: packet %.2f us, handshake %.2f us, %.3f ns/B eager, %.3f ns/B in chunks", scope,
                messages->packet_ns / 1e3, messages->handshake_ns / 1e3, messages->eager_ns_per_byte,
                messages->chunks_ns_per_byte);
}

std::size_t whole_pages(std::size_t bytes) { return std::max<std::size_t>((bytes + 4095) & ~std::size_t{4095}, 4096); }

}  // namespace

thresholds thresholds::choose(const messenger_options& wanted, const copy::cost_table* costs,
                              const handshake_costs* messages) {
  thresholds out;
  const auto near = messages != nullptr ? messages->near : std::nullopt;
  const auto far = messages != nullptr ? messages->far : std::nullopt;
  if (near) out.eager_host = out.eager_host_network = out.eager_host_rdma = host_crossing(*near);
  if (far) out.eager_host_network = out.eager_host_rdma = host_crossing(*far);
  if (costs != nullptr) {
    out.origin = "from the copy planner's costs";
    const message_costs local_costs = near.value_or(message_costs{});
    out.eager_device = out.eager_device_network = crossing(
        [&](std::size_t n) { return eager_cost(local_costs, *costs, n) + kQueueNsPerByte * static_cast<double>(n); },
        [&](std::size_t n) {
          const double by_ipc = ipc_cost(local_costs, *costs, n);
          if (!wanted.use_channels) return by_ipc;
          return std::min(by_ipc, dma_cost(local_costs, *costs, copy::other_side::peer_gpu, n));
        });
    out.eager_shared_gpu = crossing([&](std::size_t n) { return shared_eager_cost(local_costs, *costs, n); },
                                    [&](std::size_t n) {
                                      return wanted.use_channels
                                                 ? dma_cost(local_costs, *costs, copy::other_side::same_gpu, n)
                                                 : shared_ring_cost(local_costs, *costs, n);
                                    });
    out.shared_gpu_cpu_limit = shared_cpu_limit(*costs);
    if (far)
      out.eager_device_network = crossing([&](std::size_t n) { return eager_cost(*far, *costs, n); },
                                          [&](std::size_t n) { return chunk_cost(*far, *costs, n); });
  }
  if (near || far)
    out.origin = (costs != nullptr ? out.origin + " and " : "from ") + "what messages cost here (" + messages->origin +
                 words_of("node", near) + words_of("network", far) + ")";
  if (wanted.eager_limit != 0)
    out.eager_host = out.eager_host_network = out.eager_host_rdma = out.eager_device = out.eager_device_network =
        out.eager_shared_gpu = wanted.eager_limit;
  if (wanted.gdr_send_limit != 0) out.eager_device = out.eager_device_network = out.eager_shared_gpu = wanted.gdr_send_limit;
  for (auto* limit : {&out.eager_host, &out.eager_host_network, &out.eager_host_rdma, &out.eager_device,
                      &out.eager_device_network, &out.eager_shared_gpu})
    *limit = std::min(*limit, kMaxEager);
  out.ipc_from = wanted.ipc_threshold != 0 ? wanted.ipc_threshold : out.eager_device;
  if (wanted.ipc_threshold != 0) out.ipc_to_host_from = wanted.ipc_threshold;
  out.store_limit = wanted.gdr_receive_limit;
  if (wanted.chunk_bytes != 0) out.ring_chunk_bytes = out.network_chunk_bytes = whole_pages(wanted.chunk_bytes);
  // At least four of the largest packets: with less the sender would wait for an answer after each.
  if (wanted.unexpected_bytes != 0) out.unexpected_bytes = std::max(wanted.unexpected_bytes, kMinUnexpected);
  return out;
}

}  // namespace pl::messaging
