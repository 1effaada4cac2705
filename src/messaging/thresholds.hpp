// SPDX-License-Identifier: Apache-2.0
// Message sizes, in bytes, that select the protocol and the transport. All decisions use this table.
//
// Owns: nothing. Threads: plain values; the messenger's lock guards those of its context. Errors: none.
#pragma once

#include <cstddef>
#include <string>

#include "messaging/message_costs.hpp"
#include "messaging/messenger.hpp"

namespace pl::copy {
class cost_table;
}

namespace pl::messaging {

struct thresholds {
  static constexpr std::size_t kMaxEager = 32 << 10;  // generic datatypes always travel in fragments, which UCX reassembles
  static constexpr std::size_t kMinUnexpected = 4 * kMaxEager;
  std::size_t eager_host = 8 << 10;
  std::size_t eager_host_network = kMaxEager;  // to another host: over TCP no copy costs as much as a handshake
  std::size_t eager_host_rdma = 16 << 10;  // to another host with RDMA: three UCX packets cost less than UCX's rendezvous
  std::size_t eager_device = 4 << 10;      // from device memory; also the limit for reading it with CPU loads
  std::size_t eager_device_network = 8 << 10;
  std::size_t eager_shared_gpu = 16 << 10;   // eager_device while another process of the node uses the GPU: CPU loads only
  std::size_t ipc_from = 4 << 10;            // to device memory
  std::size_t ipc_to_host_from = 512 << 10;  // pinned memory, and pageable memory if one thread copies (cuda_ipc_rndv.cpp)
  std::size_t shared_gpu_cpu_limit = 192 << 10;  // up to here a CPU copy costs less than a context switch of the GPU
  std::size_t store_limit = 0;                   // the CPU stores received device data up to here; 0: the planner decides
  std::size_t ring_chunk_bytes = 1 << 20;
  std::size_t network_chunk_bytes = 256 << 10;
  std::size_t unexpected_bytes = 4u << 20;
  std::string origin = "built in";

  // `costs`: the planner's, measured on this machine or built in; null without a GPU. `messages`: null if not measured.
  // Values set in `wanted` take precedence.
  static thresholds choose(const messenger_options& wanted, const copy::cost_table* costs,
                           const handshake_costs* messages = nullptr);
};

}  // namespace pl::messaging
