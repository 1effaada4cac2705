// SPDX-License-Identifier: Apache-2.0
// Connects all ranks to a socket of rank 0: over TCP, or on one host over a local socket.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "messaging/bootstrap/endpoint.hpp"
#include "messaging/bootstrap/star_channel.hpp"

namespace pl::messaging {

struct meeting {
  endpoint rendezvous;
  int rank = 0;
  int size = 0;
  std::uint64_t job = 0;    // key of the job: ranks of another run have another one; 0: unknown
  std::string secret;       // that all ranks know; PEERLANE_LINK_SECRET_FILE, where it is set, counts instead
  bool stays_open = false;  // ranks may leave and come back
  unsigned timeout_s = 60;
  std::function<void(const std::string& line)> report;  // receives progress and rejections; may be empty
};

// Returns when all ranks are connected. A failure (two ranks of one number, another number of ranks, another version) is
// reported to every rank that can be reached. Other programs and ranks of other jobs are rejected. `listener`: rank 0's, if
// it listens already.
result<std::unique_ptr<star_channel>> meet(const meeting& settings, unique_fd listener = {});

}  // namespace pl::messaging
