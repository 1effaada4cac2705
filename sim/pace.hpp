// SPDX-License-Identifier: Apache-2.0
// Links with a speed: copies then take as long as PEERLANE_SIM_RATES says, at least.
//
// A link is one direction of one device's PCIe or NVLink, or its memory. Copies that share one go one after the other, so
// together they have its rate. Any thread.
#pragma once

#include "sim/api.hpp"

namespace pl::sim {

// Host memory on a NUMA node that this machine need not have; node < 0: not known any more.
void set_host_node(const void* memory, std::size_t bytes, int node);
int host_node(const void* memory);  // -1: not declared
int device_node(int ordinal);       // PEERLANE_SIM_LINKS or peerlaneSimSetDeviceNode

// Runs `move`, a copy between these addresses by a copy engine of device `ordinal`, no faster than the link allows.
template <class Move>
void run_paced(device_ptr destination, device_ptr source, std::size_t bytes, int ordinal, const Move& move);

class pacer {
 public:
  // Reserves the link from now on.
  pacer(device_ptr destination, device_ptr source, std::size_t bytes, int ordinal);
  // Returns when the reserved time is over.
  void wait() const;

 private:
  std::uint64_t end_ns_ = 0;  // 0: no rate is set
};

template <class Move>
void run_paced(device_ptr destination, device_ptr source, std::size_t bytes, int ordinal, const Move& move) {
  const pacer pace(destination, source, bytes, ordinal);
  move();
  pace.wait();
}

}  // namespace pl::sim
