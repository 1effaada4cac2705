// SPDX-License-Identifier: Apache-2.0
// What device_halo.cpp passes to the kernel of halo_exchange.cu.
#pragma once

#include <peerlane/device_types.h>

namespace pl::async {

constexpr unsigned kHaloWordBytes = 256;  // from one side's word to the next: lines of their own

// One exchange. Sides in the order of block_place.hpp, where side ^ 1 is the opposite one. What goes up arrives as the
// neighbour's lower halo, at the same place of its window.
struct halo_post {
  peerlane_device_ring ring;
  peerlane_device_window edges;  // of this block
  peerlane_device_window words;  // of this rank, which the neighbours count up
  struct neighbour {
    peerlane_device_window field;  // its window; no bytes: there is no neighbour
    peerlane_device_window words;
  } neighbours[4];
  unsigned long long first, pitch, bytes;  // of an edge (halo_ways.hpp)
  unsigned number;                         // of the exchange, from 1
};

}  // namespace pl::async
