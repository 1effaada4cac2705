// SPDX-License-Identifier: Apache-2.0
// A kernel launch and the executor that runs its blocks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/kernel_host.hpp"
#include "sim/context.hpp"

namespace pl::sim {

struct module_image;  // module.cpp

// What a launch call asked for; a graph runs it many times.
struct launch {
  std::shared_ptr<module_image> code;  // keeps the kernel's instructions mapped
  const sim_abi::kernel_descriptor* kernel = nullptr;
  std::vector<std::byte> parameter_bytes;
  std::vector<void*> parameters;  // into parameter_bytes
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  std::size_t shared_bytes = 0;
  std::shared_ptr<context_state> fate;
  int device_ordinal = 0;
  unsigned reachable_devices = 0;  // whose ordinary memory the kernel may touch

  std::uint64_t block_count() const { return std::uint64_t{grid[0]} * grid[1] * grid[2]; }
  unsigned threads_per_block() const { return block[0] * block[1] * block[2]; }
};

// One run of it; the executor's.
struct launch_run {
  std::shared_ptr<const launch> work;
  std::shared_ptr<store_buffer> stores;  // of the stream it runs in
  std::uint64_t next_block = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t finished_blocks = 0;
};

// What the simulator offers to kernels.
const sim_abi::kernel_services* kernel_services_table();

// Runs all blocks; returns when they have ended. Called by stream workers, which wait here while the device's own
// threads (at most kMultiprocessors) run the blocks; blocks beyond that wait their turn.
void execute_launch(const std::shared_ptr<const launch>& work);

// One block, on the calling thread (executor only).
void run_block(const launch_run& run, std::uint64_t index);

}  // namespace pl::sim
