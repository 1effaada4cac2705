// SPDX-License-Identifier: Apache-2.0
// The processes of one multi-node run: one GPU each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "messaging/bootstrap/star_exchange.hpp"

namespace pl::bandwidth {

// Collective calls: every rank makes the same calls in the same order, on one thread. A rank that dies or is silent for
// longer than the time-out makes the call fail on all others (ETIMEDOUT, ECONNRESET, with the rank's number and host).
// After a failure the group is of no use: every later call fails at once with the same sentence.
class group {
 public:
  // Null means a group of one.
  explicit group(std::unique_ptr<messaging::star_exchange> exchange) : exchange_(std::move(exchange)) {}
  int rank() const { return exchange_ ? exchange_->rank() : 0; }
  int size() const { return exchange_ ? exchange_->size() : 1; }
  std::string library() const { return exchange_ ? exchange_->library() : "none"; }  // "MPI: Open MPI 4.1.4" or "TCP"
  status barrier() { return exchange_ ? exchange_->barrier() : status(); }
  // A barrier without a time limit, for ranks that have nothing to do while another works for long. A dead rank still ends
  // it.
  status slow_barrier() { return exchange_ ? exchange_->slow_barrier() : status(); }
  // `mine` of every rank, by rank; lengths may differ.
  result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine);

  const std::string& host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  bool same_host(int a, int b) const {
    return host_ids_[static_cast<std::size_t>(a)] == host_ids_[static_cast<std::size_t>(b)];
  }
  int local_rank() const { return local_rank_; }  // position among the ranks of this host
  std::string name_of(int rank) const;            // "rank 2 (node7)", for messages

  // Fills the host tables; called once by open_group.
  status exchange_hosts();

 private:
  std::unique_ptr<messaging::star_exchange> exchange_;
  std::vector<std::string> hosts_;
  std::vector<std::string> host_ids_;  // boot id + network namespace: names may be equal on different hosts
  int local_rank_ = 0;
};

struct group_options {
  int nodes = 0;           // processes (--nodes); 0: from the launcher's environment, else a group of one
  int rank = -1;           // --rank
  std::string rendezvous;  // host:port of rank 0 (--rendezvous), or empty
  unsigned timeout_s = 60;
};

// An MPI launcher's environment (OMPI_COMM_WORLD_*, PMI_*, SLURM_*) without --nodes: by the MPI bootstrap library beside the
// program if it was built, else, when all ranks share this host, by TCP on loopback. EINVAL, ENOSYS: what is missing.
result<std::unique_ptr<group>> open_group(const group_options& options);

}  // namespace pl::bandwidth
