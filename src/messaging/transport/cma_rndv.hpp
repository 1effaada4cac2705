// SPDX-License-Identifier: Apache-2.0
// Rendezvous by cma (cross memory attach), between host memories of one node. The receiver reads the sender's memory with
// process_vm_readv: one copy instead of the two of a shared-memory ring, and no wait for the sender. The kernel permits it
// between processes of one user that may trace each other. Otherwise (different users, a seccomp filter of a container,
// Yama) the ring is used.
//
// Owns: the reads in progress, and the list of peers that the kernel denies access to.
// Threads: as transport.hpp. Errors: ECONNRESET: the sender has ended. A denied read is passed to the next transport.
#pragma once

#include <sys/types.h>

#include <vector>

#include "messaging/rndv_frame.hpp"
#include "messaging/transport/transport.hpp"

namespace pl::messaging {

class peer_watch;
struct peer_state;

// This transport's part of the state of a transfer (transfer.hpp).
struct cma_transfer {
  explicit cma_transfer(const rts_body& announced) : source(announced.address), rts(announced) {}
  std::uint64_t source;  // address of the message in the sending process
  rts_body rts;          // for the next transport, if the kernel denies the read
};

class cma_rndv final : public transport {
 public:
  cma_rndv(rendezvous& owner, peer_watch& watch);
  void offer(operation& send, const std::optional<cu::pointer_info>& gpu, rts_body& rts) override;
  bool start_receive(operation& receive, const rts_body& rts) override;
  void advance() override;
  bool abort(operation& op, const abort_reason& reason) override;
  void admit(int rank) override { is_denied_[static_cast<std::size_t>(rank)] = 0; }
  // Whether the options allow reading the memory of `rank`, and the kernel has not denied it so far.
  bool is_allowed(int rank) const;

 private:
  void read_together();
  void advance(operation& op);
  bool read_some_bytes(operation& receive, std::size_t most);
  static int read_process(pid_t pid, std::uint64_t address, void* destination, std::size_t bytes);
  bool classify_read_error(operation& receive, const peer_state& source, int code);

  peer_watch& watch_;
  std::vector<char> is_denied_;  // by rank
  std::size_t budget_ = 0;       // bytes that may still be read in this round of progress
};

}  // namespace pl::messaging
