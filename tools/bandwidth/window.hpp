// SPDX-License-Identifier: Apache-2.0
// One gated window: some transfers, started together, each so many times.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gate.hpp"
#include "gpu_lane.hpp"

namespace pl::bandwidth {

struct window_plan {
  std::span<const std::uint64_t> copies;  // of each transfer
  unsigned warm_up = 0;
  unsigned timeout_s = 30;
  const std::function<status()>* before_release = nullptr;  // may be null
};

struct window_timing {
  std::vector<double> own_ns;  // of each transfer, its own start to its own end
  double window_ns = 0;        // from the first start to the last end
  double all_ran_ns = 0;       // as much of it as all transfers ran
};

// The streams, events and threads for a set of transfers, for as many windows as wanted. One thread.
class window {
 public:
  // Makes and loads everything that must not be made while streams are held. The transfers must be checked, and peer access
  // enabled. `transfers` must outlive the object.
  static result<std::unique_ptr<window>> make(gpu_set& gpus, std::span<const bound_transfer> transfers);
  ~window();
  window(const window&) = delete;
  window& operator=(const window&) = delete;

  // Nothing runs afterwards, unless is_busy().
  result<window_timing> run(const window_plan& plan);
  // Work did not end in time, and still has not: this object must be kept until it has.
  bool is_busy();
  // GPUs that work for this object.
  std::vector<int> gpus_in_use() const;

 private:
  window(gpu_set& gpus, std::span<const bound_transfer> transfers) : gpus_(gpus), transfers_(transfers) {}
  status enqueue(const window_plan& plan);
  status enqueue_warm_up(const window_plan& plan);
  status chain_starts();
  status chain_ends();
  status release(const window_plan& plan);
  status wait(unsigned timeout_s);
  void drain(unsigned timeout_s);
  result<window_timing> time_by_gpu();

  gpu_set& gpus_;
  std::span<const bound_transfer> transfers_;
  std::unique_ptr<gate> gate_;
  std::vector<std::unique_ptr<gpu_lane>> lanes_;
};

}  // namespace pl::bandwidth
