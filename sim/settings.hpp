// SPDX-License-Identifier: Apache-2.0
// What the environment says about the simulated machine's links and their rates. Used by both simulated libraries.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace pl::sim {

// One board, as the management library describes it. The defaults are those of an H100 SXM.
struct link_settings {
  unsigned pcie_generation = 5, pcie_width = 16;
  unsigned pcie_generation_max = 5, pcie_width_max = 16;
  unsigned nvlink_version = 4, nvlinks = 18, nvlinks_max = 18;
  bool has_switch = true;  // NVLinks end at a switch, else at the other boards in turn
  unsigned memory_bits = 5120, memory_mhz = 2619, memory_mhz_max = 2619;
  unsigned sm_mhz = 1980, sm_mhz_max = 1980;
  int numa_node = 0;
  std::uint64_t throttle = 0;
  unsigned replays = 0, ecc = 0, processes = 0;
  std::uint64_t bar1_bytes = 128ull << 30;
};

// PEERLANE_SIM_LINKS: "KEY=VALUE,..." for all boards, or parts "BOARD:KEY=VALUE,..." separated by ';'; later parts win.
//   pcie=3x8        link now; at most the better of this and 5x16. pcie=3x8/4x16 says both
//   nvlink=4x18     version and active links; nvlink=4x17/18 of so many
//   switch=0        the NVLinks go to the other boards
//   hbm=5120@2619   bus bits and clock in MHz; hbm=5120@1593/2619 clock now and at most
//   sm=1200/1980    clock of the multiprocessors, now and at most
//   numa=1  throttle=0x40  replays=3  ecc=1  processes=2  bar1=256M
// EINVAL with the part that is not understood.
result<std::vector<link_settings>> parse_links(std::string_view text, std::size_t boards);

// GB/s (1e9 bytes); 0: as fast as this CPU copies.
struct rate_settings {
  double h2d = 0, d2h = 0, p2p = 0, local = 0;
  double far = 1;    // factor for host memory on another NUMA node than the device's
  double noise = 0;  // standard deviation of a copy's rate, and of all rates of one process, as a share
  std::uint64_t seed = 0;
  std::map<std::size_t, double> board_factors;  // of single boards, for all their rates
  bool any() const { return h2d > 0 || d2h > 0 || p2p > 0 || local > 0; }
};
// PEERLANE_SIM_RATES: "h2d=2,d2h=2,p2p=4,local=8,far=0.5,noise=0.02,seed=7;1:factor=0.5". EINVAL with the part that is not
// understood.
result<rate_settings> parse_rates(std::string_view text);

// How streams reach the device. PEERLANE_SIM_QUEUE, PEERLANE_SIM_QUEUES, CUDA_DEVICE_MAX_CONNECTIONS.
struct queue_settings {
  std::uint64_t depth = 0;  // outstanding operations of a stream; 0: no limit
  unsigned queues = 0;      // that the streams of a context share; 0: every stream has its own
};

// From the environment; a value that is not understood is logged and the defaults are in force.
std::vector<link_settings> read_link_settings(std::size_t boards);
rate_settings read_rate_settings();
queue_settings read_queue_settings();
std::size_t read_board_count();  // PEERLANE_SIM_DEVICES

}  // namespace pl::sim
