// SPDX-License-Identifier: Apache-2.0
// Ranks that meet at a socket of rank 0: over TCP, or within one host over a local socket.
#pragma once

#include <memory>

#include "endpoint.hpp"
#include "star_channel.hpp"

namespace pl::bandwidth {

struct meeting {
  endpoint where;
  int rank = 0;
  int nodes = 0;
  std::uint64_t job = 0;  // key of the job: ranks with another one belong to another run; 0: none is known
  unsigned timeout_s = 60;
};

// Returns when all ranks have come. Failures are told to every rank that can be reached, with the reason:
// two ranks of one number, another --nodes, another version. Strangers (port scanners, ranks of other jobs) are turned away.
result<std::unique_ptr<star_channel>> meet(const meeting& at);

}  // namespace pl::bandwidth
