// SPDX-License-Identifier: Apache-2.0
// Takes memory back while a transport uses it: a window ends, a request is dropped, a wait times out.
//
// Transfers that this process makes itself (copies into and out of a ring, parts through UCX, reads of a peer's memory)
// stop here. A peer's own reads (process_vm_readv, CUDA IPC) cannot be stopped from here. So the withdrawal is counted
// in the shm queue before the memory is returned, and a peer that reads it later detects that it has not read the
// message. No process writes into another one's memory: the target of a put reads it.
//
// Owns nothing. Threads: the messenger's lock guards all calls. Errors: a revoked operation ends with ECANCELED.
#pragma once

#include "messaging/packet_channel.hpp"
#include "messaging/rndv.hpp"
#include "messaging/tag_send_recv.hpp"

namespace pl::messaging {

class memory_revocation {
 public:
  memory_revocation(messenger_context& context, packet_channel& channel, rendezvous& transfers, tagged_messages& messages)
      : context_(context), channel_(channel), rendezvous_(transfers), messages_(messages) {}

  // Stops this process's use of the operation's memory. True: nothing in this process reads or writes it any more, and a
  // peer discards what it has read of it since. The operation itself may continue without the memory. May be repeated.
  bool revoke(operation& op);
  // A rank whose operation still uses the ended window; -1: none.
  int window_user(std::uint32_t id);
  // The peer takes back the memory of a message.
  void on_withdraw(peer_state& source, const frame& head);

 private:
  void revoke_to_self(operation& op);
  bool revoke_unsent(operation& op);
  bool revoke_waiting(operation& op);

  messenger_context& context_;
  packet_channel& channel_;
  rendezvous& rendezvous_;
  tagged_messages& messages_;
};

}  // namespace pl::messaging
