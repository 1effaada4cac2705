// SPDX-License-Identifier: Apache-2.0
// Rendezvous through the key-value store of a launcher, for ranks on several hosts. Rank 0 listens on a free port and
// publishes it in the store, together with the addresses of its host and a fresh secret for this rendezvous.
//
// Threads: one.
#pragma once

#include <memory>
#include <string>

#include "messaging/bootstrap/endpoint.hpp"
#include "messaging/bootstrap/launcher_store.hpp"

namespace pl::messaging {

struct launcher_rendezvous {
  endpoint rendezvous;
  std::string secret;
  unique_fd listener;                     // rank 0 only; empty on other ranks
  std::unique_ptr<launcher_store> store;  // keep it open until all ranks are connected: some may not have read it yet
};

// Collective: each call arranges a separate rendezvous, so all ranks of the job must make the same number of calls. ENOSYS:
// the store is not available. ETIMEDOUT: rank 0 published nothing within `timeout_s` seconds. EIO: the launcher reported an
// error. EADDRNOTAVAIL: this host has no usable address.
result<launcher_rendezvous> arrange_rendezvous(int rank, unsigned timeout_s);

// Encodes and decodes the text that rank 0 publishes. EPROTO: `text` was not made by rendezvous_text().
std::string rendezvous_text(const std::vector<endpoint::address>& addresses, const std::string& secret);
result<launcher_rendezvous> parse_rendezvous_text(const std::string& text);

}  // namespace pl::messaging
