// SPDX-License-Identifier: Apache-2.0
// One way that the bytes of a rendezvous travel. `rendezvous` knows transports only by this interface:
//
//   sender     offer         adds to the RTS what a receiver needs to reach the message
//   receiver   start_receive the first transport that suits both memories takes the message
//   sender     start_send    the receiver's RTR asks this side to move the bytes
//   both       advance       moves what can move now, and tells `rendezvous` about ends
//   both       abort         stops a transfer whose memory or peer is gone
//
// Owns: its transfers under way, its state of each peer, and its slice of a transfer's state (transfer.hpp).
// Threads: the messenger's lock guards all calls.
// Errors: an end with an errno value at rendezvous::finish_*; no call fails otherwise.
// Speed: virtual calls are made for each rendezvous, never for an eager message; is_busy() keeps idle ones out of a poll.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cuda/pointer.hpp"
#include "messaging/intrusive_list.hpp"
#include "messaging/messenger_context.hpp"
#include "messaging/request_state.hpp"

namespace pl::messaging {

class rendezvous;
class packet_channel;
struct rts_body;
struct rtr_body;

enum class abort_cause : std::uint8_t {
  revoked,    // this process takes the memory back
  withdrawn,  // receiver: the sender has taken its memory back
  refused,    // the other side has ended the transfer with `code`
  peer_lost,
};

struct abort_reason {
  abort_cause cause = abort_cause::revoked;
  int code = 0;
  std::string message;
};

class transport {
 public:
  // `awaits_ats`: the sender takes no part, so only the receiver's ATS ends its send.
  transport(rendezvous& owner, bool awaits_ats);
  virtual ~transport() = default;
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;

  bool awaits_ats() const noexcept { return awaits_ats_; }
  // advance() has something to do.
  bool is_busy() const noexcept { return under_way_ != 0; }
  // Something that it waits for wakes nobody (a copy of a GPU), or waits for advance() alone. Else each step that it takes
  // is noted as an event, and what it waits for is a packet or makes a peer ring.
  virtual bool must_poll() const { return is_busy(); }

  // Sender: `gpu` describes the message's memory, empty for host memory.
  virtual void offer(operation& send, const std::optional<cu::pointer_info>& gpu, rts_body& rts) = 0;
  // Receiver. False: this transport does not suit the message, or cannot be used; nothing has begun.
  virtual bool start_receive(operation& receive, const rts_body& rts) = 0;
  // Sender. False: the receiver reads this transport's messages by itself, so the RTR is wrong.
  virtual bool start_send(operation&, const rtr_body&) { return false; }
  virtual void advance() = 0;
  // True: nothing in this process reads or writes the operation's memory any more. The transport ends the operation, at once
  // or as soon as nothing can arrive for it; a revoked one may go on without the memory. Revoking may be repeated.
  virtual bool abort(operation& op, const abort_reason& reason) = 0;
  // The peer is dead, and its operations were aborted.
  virtual void forget(int) {}
  // Another process is that rank now. Nothing of the dead one is under way.
  virtual void admit(int) {}

 protected:
  void enter(operation& op) noexcept {
    moving_.push_back(&op);
    set_under_way(under_way_ + 1);
  }
  void leave(operation& op) noexcept {
    moving_.remove(&op);
    set_under_way(under_way_ - 1);
  }
  std::size_t under_way() const noexcept { return under_way_; }
  void set_under_way(std::size_t count) noexcept {
    if (count > under_way_) context_.wake.note();
    all_under_way_ += count - under_way_;
    under_way_ = count;
  }

  rendezvous& rendezvous_;
  messenger_context& context_;
  packet_channel& channel_;
  intrusive_list<operation, &operation::in_order> moving_;  // in the order of their start

 private:
  std::size_t& all_under_way_;  // of all transports
  std::size_t under_way_ = 0;
  const bool awaits_ats_;
};

}  // namespace pl::messaging
