// SPDX-License-Identifier: Apache-2.0
// Connects every rank to a socket of rank 0, over TCP or, on one host, over a local socket.
//
// Threads: one. Errors: as stated at each call.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "messaging/bootstrap/endpoint.hpp"
#include "messaging/bootstrap/star_channel.hpp"
#include "messaging/bootstrap/survivor_claim.hpp"

namespace pl::messaging {

struct job_settings {
  endpoint rendezvous;
  int rank = 0;
  int size = 0;
  std::uint64_t job = 0;    // key of the job, different for each run; 0: unknown
  std::string secret;       // shared by all ranks; PEERLANE_LINK_SECRET_FILE overrides it
  bool stays_open = false;  // ranks may leave and come back
  unsigned timeout_s = 60;
  std::function<void(const std::string& line)> report;  // called with progress and rejections; may be empty
};

// Collective: returns when all ranks are connected. Failures (a duplicate rank, a different number of ranks, a different
// version) are reported to every rank that can be reached. Other programs and ranks of other jobs are rejected. `listener`:
// the socket of rank 0, if it is already listening.
result<std::unique_ptr<star_channel>> meet(const job_settings& settings, unique_fd listener = {});

// ---- One attempt of a connected rank to join
struct joined_job {
  frame_stream stream;  // with rank 0
  std::uint64_t run = 0;
  std::uint32_t incarnation = 1;        // of this process; for a survivor, of rank 0
  std::vector<std::uint32_t> living{};  // for a survivor: the incarnation of each rank that rank 0 knows; 0: it is gone
};
struct join_terms {
  const survivor_claim* claim = nullptr;  // null unless this rank is a survivor
  std::function<bool()> is_over{};        // polled while waiting; true ends the attempt
};
// ECONNRESET: rank 0 closed the connection without giving a reason. ECANCELED: is_over() returned true.
result<joined_job> join_by(unique_fd socket, const job_settings& settings, const std::string& secret,
                           const join_terms& terms);

}  // namespace pl::messaging
