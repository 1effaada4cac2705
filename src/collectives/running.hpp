// SPDX-License-Identifier: Apache-2.0
// A collective under way at one rank: its schedule, and how far it has come.
//
// Owns: its messages' requests and scratch memory. Threads: the executor's lock guards it. Errors: `outcome` has the first.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/algorithm_table.hpp"
#include "collectives/schedule.hpp"

namespace pl::collectives {

struct running {
  collective kind = collective::barrier;
  std::uint64_t sequence = 0;
  schedule steps;
  std::vector<messaging::request> requests;  // by token
  std::vector<std::size_t> wanted;           // bytes of the message, by token; SIZE_MAX: a send
  std::size_t next = 0;                      // step
  device_combiner::ticket combination = 0;   // of the step that is next, by a GPU; 0: not begun
  std::uint32_t settled = 0;                 // messages from the first on that have ended
  bool has_ended = false;
  status outcome;
};

}  // namespace pl::collectives
