// SPDX-License-Identifier: Apache-2.0
// Connects all ranks to a socket of rank 0: over TCP, or on one host over a local socket.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "messaging/bootstrap/endpoint.hpp"
#include "messaging/bootstrap/star_channel.hpp"
#include "messaging/bootstrap/survivor_claim.hpp"

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

// ---- One attempt of a rank to join, when it is connected
struct joined_meeting {
  frame_stream stream;  // with rank 0
  std::uint64_t run = 0;
  std::uint32_t incarnation = 1;        // of this process; to a survivor: of rank 0's
  std::vector<std::uint32_t> living{};  // to a survivor: which process each rank is to rank 0; 0: it is gone
};
struct join_terms {
  const survivor_claim* claim = nullptr;  // of a survivor
  std::function<bool()> is_over{};        // looked at while it waits
};
// ECONNRESET: rank 0 has closed the connection without a word. ECANCELED: it is over.
result<joined_meeting> join_by(unique_fd socket, const meeting& settings, const std::string& secret,
                               const join_terms& terms);

}  // namespace pl::messaging
