// SPDX-License-Identifier: Apache-2.0
// One transfer that a CPU thread drives: BAR1, the copy kernel, DMA channels, and those of CUDA's copies that block the
// caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "copy/planner.hpp"
#include "tools/bandwidth/gpu_set.hpp"
#include "tools/bandwidth/runner.hpp"

namespace pl::bandwidth {

// What CPU-driven transfers share, created on first use. Used by one thread.
class cpu_tools {
 public:
  explicit cpu_tools(gpu_set& gpus) : gpus_(gpus) {}
  result<copy::planner*> planner();
  // The same with DMA channels, on whatever GPU.
  result<copy::planner*> channel_planner();
  // Most that one mapping of planner()->maps() takes.
  std::uint64_t piece_bytes() const { return piece_bytes_; }

 private:
  gpu_set& gpus_;
  std::unique_ptr<copy::planner> planner_, channel_planner_;
  std::uint64_t piece_bytes_ = 0;
};

class cpu_copier {
 public:
  virtual ~cpu_copier() = default;
  // On the copier's own thread, before the first copy.
  virtual status enter() { return {}; }
  // Complete on return. ECANCELED once `stop` is set, which is checked between copies.
  virtual status copy(std::uint64_t copies, const std::atomic<bool>& stop) = 0;
  // Times that a copy was refused for the moment and tried again.
  virtual std::uint64_t retries() const { return 0; }
};

// For a checked transfer (transfer_check.hpp) that no GPU stream can hold. Everything that it maps or loads is there when
// this returns.
result<std::unique_ptr<cpu_copier>> make_cpu_copier(gpu_set& gpus, cpu_tools& tools, const bound_transfer& transfer);

}  // namespace pl::bandwidth
