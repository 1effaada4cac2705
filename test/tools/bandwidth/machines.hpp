// SPDX-License-Identifier: Apache-2.0
// Machines as this project's results describe them, for tests of the link model.
#pragma once

#include "tools/bandwidth/judgement.hpp"

namespace pl::bandwidth {

inline gpu_link_facts h100_facts() {
  gpu_link_facts out;
  out.name = "NVIDIA H100 80GB HBM3";
  out.bus_id = "0000:00:06.0";
  out.pcie_generation_now = out.pcie_generation_max = 5;
  out.pcie_width_now = out.pcie_width_max = 16;
  out.memory_bus_bits = 5120;
  out.memory_clock_mhz = out.memory_clock_max_mhz = 2619;
  out.sm_clock_mhz = out.sm_clock_max_mhz = 1980;
  out.bar1_bytes = 128ull << 30;
  out.memory_bytes = 79ull << 30;
  out.l2_bytes = 50u << 20;
  out.numa_node = 0;
  return out;
}

inline gpu_link_facts h200_facts() {
  auto out = h100_facts();
  out.name = "NVIDIA H200";
  out.memory_bus_bits = 6144;
  out.memory_clock_mhz = out.memory_clock_max_mhz = 3201;
  out.nvlink_version = 4;
  out.nvlink_mbps_each = 26562;
  out.nvlinks_active = out.nvlinks_total = 18;
  out.has_nvswitch = true;
  return out;
}

inline machine_links machine_of(std::vector<gpu_link_facts> gpus) {
  machine_links out;
  out.gpus = std::move(gpus);
  return out;
}

inline transfer_path path_of(place source, place destination, executor executor, std::uint64_t bytes = 1ull << 30) {
  transfer_path out;
  out.source = source;
  out.destination = destination;
  out.executor = executor;
  out.bytes = bytes;
  out.is_local_copy = source == destination;
  return out;
}

inline executor by_ce(int gpu = 0) { return {executor_kind::ce, gpu, 0}; }
inline executor by_sm(int gpu = 0, unsigned width = 0) { return {executor_kind::sm, gpu, width}; }
inline executor by_bar(unsigned threads) { return {executor_kind::bar, 0, threads}; }
inline executor by_engine(unsigned workers) { return {executor_kind::engine, 0, workers}; }

}  // namespace pl::bandwidth
