// SPDX-License-Identifier: Apache-2.0
// The plan as text, and the options from the environment.
#include <algorithm>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "messaging/bootstrap/foreign_settings.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::messaging {
namespace {

std::string line(const char* first, const char* last, const char* sizes, const char* way) {
  return format("  %-7s %-7s %-22s %s\n", first, last, sizes, way);
}

std::string up_to(std::size_t bytes) { return "up to " + format_size(bytes); }
std::string beyond(std::size_t bytes) { return "beyond " + format_size(bytes); }

// The first of the names that is set, in order.
env_value first_set(std::initializer_list<const char*> names) {
  env_value value;
  for (const char* name : names)
    if ((value = env_read(name)).is_set) return value;
  return {};
}

std::size_t size_from(std::initializer_list<const char*> names) {
  const auto value = first_set(names);
  return value.is_set && value.integer > 0 ? static_cast<std::size_t>(value.integer) : 0;
}

}  // namespace

messenger_options messenger_options::from_environment() {
  messenger_options out;
  if (env_read("PEERLANE_LINK_PATH").text == "network") out.path = path_t::network;
  const auto ipc = first_set({"PEERLANE_LINK_IPC", "MV2_CUDA_IPC", "OMPI_MCA_btl_smcuda_use_cuda_ipc"});
  out.use_ipc = !ipc.is_set || ipc.integer != 0;
  const auto pull = first_set({"PEERLANE_LINK_PULL", "MV2_SMP_USE_CMA"});
  out.use_cma = !pull.is_set || pull.integer != 0;
  out.use_channels =
      env_read("PEERLANE_LINK_CHANNELS").integer != 0 && copy::channel_use_from_environment() != copy::channel_use::never;
  const auto rendezvous = env_read("PEERLANE_LINK_UCX_RENDEZVOUS").text;
  if (rendezvous == "never") out.rendezvous = rendezvous_t::never;
  if (rendezvous == "always") out.rendezvous = rendezvous_t::always;
  const auto gdr = first_set({"PEERLANE_LINK_GPU_LANES", "MV2_USE_GPUDIRECT_RDMA", "OMPI_MCA_btl_openib_want_cuda_gdr"});
  out.use_ucx_gpu_lanes = gdr.is_set ? gdr.integer != 0 : !forbids_gpu_rdma();
  out.eager_limit = size_from({"PEERLANE_LINK_EAGER_LIMIT"});
  out.gdr_send_limit = size_from({"PEERLANE_LINK_GDR_SEND_LIMIT", "MV2_GDRCOPY_LIMIT", "MV2_USE_GPUDIRECT_GDRCOPY_LIMIT"});
  out.gdr_receive_limit = size_from({"PEERLANE_LINK_GDR_RECEIVE_LIMIT"});
  out.ipc_threshold = size_from({"PEERLANE_LINK_IPC_THRESHOLD", "MV2_CUDA_IPC_THRESHOLD"});
  out.chunk_bytes = size_from({"PEERLANE_LINK_CHUNK", "MV2_CUDA_BLOCK_SIZE"});
  out.copy_threads = copy::planner::options_from_environment().threads;
  out.unexpected_bytes = size_from({"PEERLANE_LINK_UNEXPECTED"});
  out.rails = first_set({"PEERLANE_LINK_RAILS"}).text;
  out.fixed_rail = env_read("PEERLANE_LINK_FIXED_RAIL").integer != 0;
  if (env_read("MV2_RAIL_SHARING_POLICY").text == "FIXED_MAPPING") out.fixed_rail = true;
  if (out.rails.empty()) {
    auto foreign = rails_from_environment();
    out.rails = std::move(foreign.devices);
    out.fixed_rail = out.fixed_rail || foreign.is_one_each;
  }
  out.stripe_threshold = size_from({"PEERLANE_LINK_STRIPE_THRESHOLD", "MV2_RAIL_SHARING_LARGE_MSG_THRESHOLD"});
  const auto failover = env_read("PEERLANE_LINK_RAIL_FAILOVER").text;
  if (failover == "off") out.rail_failover = rail_failover_t::never;
  if (failover == "on") out.rail_failover = rail_failover_t::always;
  out.progress_thread = env_read("PEERLANE_LINK_PROGRESS_THREAD").integer != 0;
  out.calibrate = env_read("PEERLANE_LINK_CALIBRATE").integer != 0;
  out.peer_timeout = std::chrono::milliseconds(std::max<std::int64_t>(env_read("PEERLANE_LINK_PEER_TIMEOUT_MS").integer, 0));
  for (const auto& line : unused_settings()) PL_LOG(warn, "%s", line.c_str());
  return out;
}

std::string messenger::plan(int rank) const {
  const std::lock_guard lock(core_->mutex_);
  auto& core = *core_;
  if (rank < 0 || rank >= core.context_.size) return format("no rank %d\n", rank);
  const auto& remote = core.context_.peer(rank);
  if (rank == core.context_.rank) return format("rank %d: this process: one copy by the copy planner\n", rank);
  const auto& limits = core.context_.limits;
  const bool is_near = remote.is_same_node;
  const std::size_t device = core.channel_.eager_limit({.is_device = true, .device = {}}, remote);
  const std::size_t host = core.channel_.eager_limit({}, remote);
  const bool ipc = is_near && core.context_.options.use_ipc;
  const bool has_channels = is_near && core.context_.options.use_channels && core.rendezvous_.dma_refusal().empty();
  const bool pull = is_near && core.rendezvous_.may_read(rank);
  const std::string chunks = format_size(is_near ? limits.ring_chunk_bytes : limits.network_chunk_bytes);
  const std::string by_ring =
      (is_near ? "ring of pinned chunks in shared memory, " : "ring of pinned chunks over UCX, ") + chunks;
  const char* const raw = "GPU pointers to UCX (RDMA lanes)";

  std::string out =
      format("rank %d: %s%s, %s; crossovers %s\n", rank, is_near ? "same node" : "network",
             core.context_.gpu_use.is_any_shared() ? ", GPU shared with another process" : "",
             is_near ? "shared memory" : core.channel_.fabric()->description(rank).c_str(), limits.origin.c_str());
  out += line("from", "to", "size", "way");
  out += line("host", "host", up_to(host).c_str(), "eager");
  const bool is_rendezvous = !is_near && core.rendezvous_.moves_in_place(rank, {});
  out += line("host", "host", beyond(host).c_str(),
              is_rendezvous ? "UCX's rendezvous, in place"
              : !is_near    ? "UCX, in place"
              : pull        ? "read in place by the receiver's CPU"
                            : by_ring.c_str());
  out += line("host", "device", up_to(host).c_str(), "eager, mapped stores");
  out += line("host", "device", beyond(host).c_str(), remote.can_take_gpu_pointers ? raw : by_ring.c_str());
  out += line("device", "host", up_to(device).c_str(),
              core.context_.gpu_use.is_any_shared() ? "eager, mapped loads only" : "eager, planned reads");
  for (const char* target : {"host", "device"}) {
    if (*target == 'd') {
      out += line("device", target, up_to(device).c_str(), "eager, mapped loads and stores");
      if (has_channels) {
        out += line("device", target, beyond(device).c_str(), "DMA channel of the receiver's GPU");
        continue;
      }
    }
    if (!ipc) {
      out += line("device", target, beyond(device).c_str(), remote.can_take_gpu_pointers ? raw : by_ring.c_str());
      continue;
    }
    const std::size_t ipc_from = std::max(*target == 'd' ? limits.ipc_from : limits.ipc_to_host_from,
                                          core.context_.gpu_use.is_any_shared() ? limits.shared_gpu_cpu_limit : 0);
    const bool is_pageable_by_ring = *target == 'h' && core.rendezvous_.takes_ring_to_pageable();
    if (is_pageable_by_ring) out += line("device", target, beyond(device).c_str(), by_ring.c_str());
    else if (ipc_from > device) out += line("device", target, up_to(ipc_from).c_str(), by_ring.c_str());
    out += line("device", target, beyond(std::max(ipc_from, device)).c_str(),
                *target == 'd'        ? "CUDA IPC, polled completion"
                : is_pageable_by_ring ? "if the receiver's memory is pinned: CUDA IPC, the copy planner"
                                      : "CUDA IPC, the copy planner");
  }
  if (is_near && !core.rendezvous_.dma_refusal().empty())
    out += "messages between GPUs: not by DMA channel: " + core.rendezvous_.dma_refusal() + "\n";
  if (is_near) {
    const std::string reason = core.direct_.gpu_refusal();
    out += reason.empty() ? "windows of GPU memory: DMA channels of the process that puts or gets\n"
                          : "windows of GPU memory: by messages: " + reason + "\n";
  }
  return out;
}

}  // namespace pl::messaging
