// SPDX-License-Identifier: Apache-2.0
// cma (cross memory attach): between host memories of one node the receiver reads the sender's memory with
// process_vm_readv, one copy instead of a ring's two and without waiting for the sender. The kernel permits it between
// processes of one user that may trace each other. Otherwise (other users, a container's filter, Yama) the ring is used.
//
// Owns: the reads under way, and which peers the kernel denies.
// Threads: as transport.hpp. Errors: ECONNRESET the sender has ended; a denied read goes to the next transport instead.
#pragma once

#include <sys/types.h>

#include <vector>

#include "messaging/rndv_frame.hpp"
#include "messaging/transport/transport.hpp"

namespace pl::messaging {

class peer_watch;
struct peer_state;

// Its slice of a transfer's state.
struct cma_transfer {
  explicit cma_transfer(const rts_body& announced) : source(announced.address), rts(announced) {}
  std::uint64_t source;  // the message's address in its sender
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
  // The options allow it, and the kernel has not denied it.
  bool is_allowed(int rank) const;

 private:
  void read_together();
  void advance(operation& op);
  bool read_some_bytes(operation& receive, std::size_t most);
  static int read_process(pid_t pid, std::uint64_t address, void* destination, std::size_t bytes);
  bool classify_read_error(operation& receive, const peer_state& source, int code);

  peer_watch& watch_;
  std::vector<char> is_denied_;  // by rank
  std::size_t budget_ = 0;       // bytes that this round of progress may still read
};

}  // namespace pl::messaging
