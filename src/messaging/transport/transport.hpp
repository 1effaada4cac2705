// SPDX-License-Identifier: Apache-2.0
// Interface of a transport, which moves the bytes of a rendezvous. `rendezvous` uses transports only through it:
//
//   sender     offer         adds to the RTS what a receiver needs to access the message
//   receiver   start_receive the first transport that suits both memories takes the message
//   sender     start_send    the receiver's RTR asks this side to move the bytes
//   both       advance       makes progress, and reports completed transfers to `rendezvous`
//   both       abort         stops a transfer whose memory or peer is gone
//
// Owns: its transfers in progress, its state of each peer, and its slice of a transfer's state (transfer.hpp).
// Threads: the messenger's lock guards all calls.
// Errors: errno values at rendezvous::finish_*. Other calls do not fail.
// Speed: virtual calls are made for each rendezvous, never for an eager message. Idle transports (is_busy()) are not polled.
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
  revoked,    // this process needs its memory back
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
  // `awaits_ats`: only the receiver's ATS ends the send, because the sender takes no part.
  transport(rendezvous& owner, bool awaits_ats);
  virtual ~transport() = default;
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;

  bool awaits_ats() const noexcept { return awaits_ats_; }
  // True: advance() has work to do.
  bool is_busy() const noexcept { return in_flight_ != 0; }
  // True: it must be polled, because it waits for something that wakes nobody (a copy of a GPU), or for advance() itself.
  // False: it waits for a packet or for a peer that rings, and reports each of its steps as an event.
  virtual bool must_poll() const { return is_busy(); }

  // Sender: `gpu` describes the message's memory, empty for host memory.
  virtual void offer(operation& send, const std::optional<cu::pointer_info>& gpu, rts_body& rts) = 0;
  // Receiver. False: the transport cannot be used for this message; nothing has begun.
  virtual bool start_receive(operation& receive, const rts_body& rts) = 0;
  // Sender. False: the receiver reads this transport's messages by itself, so the RTR is wrong.
  virtual bool start_send(operation&, const rtr_body&) { return false; }
  virtual void advance() = 0;
  // True: this process no longer accesses the operation's memory. The transport ends the operation, at once or when nothing
  // can arrive for it any more; a revoked operation may continue without the memory. Revoking may be repeated.
  virtual bool abort(operation& op, const abort_reason& reason) = 0;
  // The peer is dead, and its operations were aborted.
  virtual void forget(int) {}
  // A new process has this rank. Nothing of the dead one is in progress.
  virtual void admit(int) {}

 protected:
  void enter(operation& op) noexcept {
    moving_.push_back(&op);
    set_in_flight(in_flight_ + 1);
  }
  void leave(operation& op) noexcept {
    moving_.remove(&op);
    set_in_flight(in_flight_ - 1);
  }
  std::size_t in_flight() const noexcept { return in_flight_; }
  void set_in_flight(std::size_t count) noexcept {
    if (count > in_flight_) context_.wake.note();
    all_in_flight_ += count - in_flight_;
    in_flight_ = count;
  }

  rendezvous& rendezvous_;
  messenger_context& context_;
  packet_channel& channel_;
  intrusive_list<operation, &operation::in_order> moving_;  // in the order in which they started

 private:
  std::size_t& all_in_flight_;  // of all transports
  std::size_t in_flight_ = 0;
  const bool awaits_ats_;
};

}  // namespace pl::messaging
