// SPDX-License-Identifier: Apache-2.0
// Where ranks on several hosts meet if their launcher has a store that all reach: rank 0 takes a free port and tells it,
// with its host's addresses and a fresh secret of this meeting.
#pragma once

#include <memory>
#include <string>

#include "messaging/bootstrap/endpoint.hpp"
#include "messaging/bootstrap/launcher_store.hpp"

namespace pl::messaging {

struct launcher_meeting {
  endpoint rendezvous;
  std::string secret;
  unique_fd listener;                     // rank 0's; others: none
  std::unique_ptr<launcher_store> store;  // to be kept until all are connected: others may not have read yet
};

// Each call in a process is another meeting; all ranks of the job call equally often. ENOSYS: the store cannot be had.
// ETIMEDOUT, EIO, EADDRNOTAVAIL: rank 0 told nothing; the launcher refused; this host has no address.
result<launcher_meeting> arrange_meeting(int rank, unsigned timeout_s);

// The text that rank 0 tells, and back. EPROTO: it is none.
std::string meeting_text(const std::vector<endpoint::address>& addresses, const std::string& secret);
result<launcher_meeting> parse_meeting(const std::string& text);

}  // namespace pl::messaging
