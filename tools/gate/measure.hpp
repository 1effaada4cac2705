// SPDX-License-Identifier: Apache-2.0
// What the gate measures and tries, each transfer with every byte compared.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/bandwidth/buffer.hpp"
#include "tools/bandwidth/gpu_set.hpp"
#include "tools/bandwidth/runner.hpp"
#include "tools/gate/gate.hpp"

namespace pl::gate {

// One thread. Makes contexts, so it must not be used while another process works on the GPUs.
class measurer {
 public:
  // Nothing new begins after `deadline_ns` of the monotonic clock. Both references outlive the object.
  measurer(bandwidth::gpu_set& gpus, const bandwidth::machine_links& links, std::uint64_t deadline_ns);

  // Every GPU's ways, then every pair. What was not begun in time is missing; see missed().
  std::vector<reading> run();
  // Once more, if there is time; else the reading as it is.
  reading again(const reading& one);
  unsigned missed() const { return missed_; }

 private:
  bool has_time();
  void add(std::vector<reading>& out, const char* name, int gpu, int peer = -1);
  reading measure(const std::string& name, int gpu, int peer);
  reading measure_host_memory(int gpu);
  reading check_placement(int gpu);
  bool run_way(const bandwidth::transfer_spec& transfer, reading& out);
  bandwidth::transfer_spec transfer_of(const std::string& name, int gpu, int peer) const;
  void judge(const bandwidth::transfer_spec& transfer, reading& out);

  bandwidth::gpu_set& gpus_;
  const bandwidth::machine_links& links_;
  const std::uint64_t deadline_ns_;
  bandwidth::buffer_pool pool_;
  bandwidth::runner runner_;
  unsigned missed_ = 0;
};

}  // namespace pl::gate
