// SPDX-License-Identifier: Apache-2.0
// Executor M: an mlx5 adapter transfers puts, and the stream rings its doorbell. For GPUs of two nodes whose adapter
// reaches GPU memory (GPUDirect RDMA). Channels do not select it, because it has not been tried on real hardware
// (mlx5_queue.hpp). To use it, connect a queue pair, register memory and words, and create it from these parts.
#pragma once

#include <functional>
#include <memory>

#include "copy/gpu_context.hpp"
#include "triggered/executor.hpp"
#include "triggered/mlx5_queue.hpp"

namespace pl::triggered {

// Behind the kinds that channels know and whose names are in executor.hpp.
inline constexpr auto kMlx5Executor = executor_kind{4};

struct mlx5_parts {
  const copy::gpu_context* gpu = nullptr;
  mlx5_place queue;
  cu::device_ptr record = 0, doorbell = 0;  // the queue's, as this GPU reaches them
  mlx5_memory signal, ack;                  // the peer's words
  cu::device_ptr our_ack = 0;               // what the peer writes when it releases
  cu::device_ptr sent = 0;                  // host_words::sent of this end
  // A window of the peer, and this GPU's memory, as the adapter names them. Key 0: none.
  std::function<mlx5_memory(const remote_window& window, std::uint64_t offset)> remote;
  std::function<mlx5_memory(cu::device_ptr source, std::size_t bytes)> local;
  // Requests that the adapter has completed, from its completion queue.
  std::function<std::uint64_t()> completed;
};

// Words and data of a put go through one queue pair into one GPU's memory, so the adapter keeps their order (with strongly
// ordered memory regions). The executor of one channel; calls from its thread.
std::unique_ptr<executor> make_mlx5_executor(const mlx5_parts& parts);

}  // namespace pl::triggered
