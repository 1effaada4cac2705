// SPDX-License-Identifier: Apache-2.0
// Ranks that meet at a socket of rank 0: over TCP, or within one host over a local socket.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "messaging/bootstrap/endpoint.hpp"
#include "messaging/bootstrap/star_channel.hpp"

namespace pl::link {

struct meeting {
  endpoint where;
  int rank = 0;
  int size = 0;
  std::uint64_t job = 0;  // key of the job: ranks with another one belong to another run; 0: none is known
  unsigned timeout_s = 60;
  std::function<void(const std::string& line)> tell;  // what is waited for, and who was turned away; may be empty
};

// Returns when all ranks have come. Failures are told to every rank that can be reached, with the reason:
// two ranks of one number, another number of ranks, another version. Strangers (port scanners, ranks of other jobs) are
// turned away.
result<std::unique_ptr<star_channel>> meet(const meeting& at);

}  // namespace pl::link
