// SPDX-License-Identifier: Apache-2.0
// One gated window: several transfers, started together, each repeated a number of times.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tools/bandwidth/cpu_team.hpp"
#include "tools/bandwidth/gate.hpp"
#include "tools/bandwidth/gpu_copier.hpp"

namespace pl::bandwidth {

struct window_plan {
  std::span<const std::uint64_t> copies;  // of each transfer
  unsigned warm_up = 0;
  unsigned timeout_s = 30;
  const std::function<status()>* before_release = nullptr;  // may be null
  // False for the first window: the driver may load code late, which waits for the GPU and would not return behind a gate.
  bool is_held = true;
};

struct window_timing {
  // For each transfer, the time from its own start to its own end; the whole window if they took turns on one engine.
  std::vector<double> own_ns;
  double window_ns = 0;   // from the first start to the last end
  double all_ran_ns = 0;  // as much of it as all transfers ran
  // Copies of each transfer in that time, in parts of one too; empty where it is not known (kernels, CPUs).
  std::vector<double> copies_while_all_ran;
};

// The streams, events and mappings for a set of transfers, for as many windows as wanted. One thread.
class window {
 public:
  // Makes and loads everything that must not be made while streams are held. The transfers must be checked, and peer access
  // enabled.
  static result<std::unique_ptr<window>> make(gpu_set& gpus, cpu_tools& tools, std::span<const bound_transfer> transfers);
  ~window();
  window(const window&) = delete;
  window& operator=(const window&) = delete;

  // Nothing runs afterwards, unless is_busy().
  result<window_timing> run(const window_plan& plan);
  // Work of a GPU did not end in time, and still has not: this object must be kept until it has.
  bool is_busy();
  // GPUs that work for this object.
  std::vector<int> gpus_in_use() const;
  // How often the executor of the transfer at this index was asked again so far.
  std::uint64_t retries(std::size_t transfer) const;

 private:
  struct gpu_part {
    std::size_t transfer;  // index
    std::unique_ptr<gpu_copier> copier;
    std::uint64_t seen_ended_ns = 0;
  };
  struct cpu_part {
    std::size_t transfer;
    std::unique_ptr<cpu_copier> copier;
  };

  window() = default;
  status open(gpu_set& gpus, cpu_tools& tools, std::span<const bound_transfer> transfers);
  result<window_timing> run_on_gpus(const window_plan& plan);
  status hold(const window_plan& plan, gpu_copier& copier);
  status enqueue(const window_plan& plan);
  status chain_starts();
  status chain_ends();
  result<window_timing> time_by_gpu();
  status compare_copiers(window_timing& out);

  result<window_timing> run_with_cpus(const window_plan& plan);
  status get_ready(const window_plan& plan, cpu_team& team);
  status enqueue_unchained(const window_plan& plan);
  result<window_timing> time_by_cpu(const cpu_team& team, std::uint64_t release_ns);

  status release(const window_plan& plan);
  status wait(const window_plan& plan, cpu_team* team);
  void drain(unsigned timeout_s);

  std::unique_ptr<gate> gate_;
  std::vector<gpu_part> on_gpus_;
  std::vector<cpu_part> on_cpus_;
};

}  // namespace pl::bandwidth
