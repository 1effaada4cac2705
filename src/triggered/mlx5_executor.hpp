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

// Value after those of executor_kind in executor.hpp; channels do not use it.
inline constexpr auto kMlx5Executor = executor_kind{4};

// A queue pair with a completion queue of its own.
struct mlx5_pair {
  mlx5_place queue;
  mlx5_completion_place completions;
  cu::device_ptr record = 0, doorbell = 0;  // of the queue; addresses for this GPU
};

struct mlx5_parts {
  const copy::gpu_context* gpu = nullptr;
  // Puts and releases are queued on different streams, and the doorbell of one would start the other: each has a queue pair.
  mlx5_pair puts, releases;
  mlx5_memory signal, ack;     // the peer's words
  cu::device_ptr our_ack = 0;  // the word that the peer writes when it releases puts
  cu::device_ptr sent = 0;     // host_words::sent of this end
  // The adapter's keys of a window of the peer and of this GPU's memory. Key 0: none.
  std::function<mlx5_memory(const remote_window& window, std::uint64_t offset)> remote;
  std::function<mlx5_memory(cu::device_ptr source, std::size_t bytes)> local;
  std::uint64_t max_write_bytes = mlx5_queue::kMaxBytes;  // limit of one request; the port's limit if it is lower
};

// Words and data of a put go through one queue pair into one GPU's memory, so the adapter keeps their order (with strongly
// ordered memory regions). The executor of one channel, for calls of its thread. After the adapter has refused a
// request, nothing is sent any more: put() and acknowledge() return EIO with the adapter's reason, and the caller must
// release waiting streams.
//
// EINVAL: the send queue could overrun the completion queue, or both pairs use the same queue.
result<std::unique_ptr<executor>> make_mlx5_executor(const mlx5_parts& parts);

}  // namespace pl::triggered
