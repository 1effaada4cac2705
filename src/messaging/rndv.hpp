// SPDX-License-Identifier: Apache-2.0
// Rendezvous: the sender's RTS contains what each transport needs to access its memory. The receiver knows both memories and
// takes the first transport that can be used for them. An ATS acknowledges the message to a sender that cannot detect the
// end by itself.
//
//   sender                              receiver
//   send_rts     -------- rts -------->  start_receive: transport::start_receive
//   transport::start_send <--- rtr ----  only where the sender moves the bytes
//                -------- bytes ------>  transport::advance
//   on_ats       <------- ats ---------  finish_receive
//
// Owns: the transports, in order of preference. Each operation owns the state of its transfer (transfer.hpp).
// Threads: the messenger's lock guards all calls.
// Errors: they end the operation, and the ATS reports them to the other side.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "messaging/messenger_context.hpp"
#include "messaging/packet_channel.hpp"
#include "messaging/peer_watch.hpp"
#include "messaging/transfer.hpp"

namespace pl::messaging {

constexpr const char* kTakenBack = "its sender has taken the message back (a time-out there, or it was dropped)";

class rendezvous {
 public:
  rendezvous(messenger_context& context, packet_channel& channel, peer_watch& watch);
  // Once the context's limits are known.
  void open() { ucx_.open(); }
  // Waits for copies, and releases messages that were never received. Call it before the connections are closed.
  void close();
  messenger_context& context() const noexcept { return context_; }
  packet_channel& channel() const noexcept { return channel_; }
  std::size_t& in_flight() noexcept { return in_flight_; }

  // ---- The sender
  void send_rts(operation& op, frame_kind kind);
  void on_rtr(peer_state& source, const frame& head, const rtr_body& request);
  void on_parts(const peer_state& source, const frame& head);
  // True: a message from this memory takes more room at its receiver (tag_send_recv.cpp).
  bool moves_in_place(int rank, const memory& source) const {
    return !source.is_device && !context_.peer(rank).is_same_node && ucx_.moves_in_place(rank, source);
  }

  // ---- The receiver
  // `data`: UCX's handle of the message, if it came with one.
  void start_receive(operation& receive, int source_rank, const rts_body& rts, std::uint64_t bytes, std::uint64_t sender_op,
                     remote_data data);
  void on_checked(const peer_state& source, const frame& head);
  void on_check(const peer_state& source, const frame& head);
  // Why the last message between GPUs of the node did not use DMA channels; empty: none was refused.
  const std::string& dma_refusal() const { return dma_.refusal(); }
  // Whether messages from GPU memory to pageable memory of this node go through the ring.
  bool takes_ring_to_pageable() const { return cuda_ipc_.takes_ring_to_pageable(); }
  // Whether the receiver may read this peer's host memory; for diagnostics.
  bool may_read(int rank) const { return cma_.is_allowed(rank); }

  // ---- Both
  // An ATS ends the operation that waits for it.
  void on_ats(const frame& head);
  void advance() {
    if (in_flight_ != 0) advance_busy();
  }
  // True: a transfer in progress needs polling.
  bool must_poll() const;
  // Aborts a transfer in progress with a lost peer. False: there is none, so the caller ends the operation.
  static bool abort_lost(operation& op, const std::string& reason);
  void forget(int rank);

  // ---- Called by the transports
  // Sends an RTS again without UCX's rendezvous, because UCX could not send it in place. Its cost in credit stays the same.
  void send_rts_again(operation& op);
  // All data was sent, or could not be read.
  void finish_send(operation& op);
  // The receiver has finished. Sends an ATS if the sender waits for one.
  void finish_receive(operation& op, int code, std::string message = {});
  // The same for bytes read in the sender's memory: they are valid unless the sender has taken it back meanwhile.
  void finish_read(operation& op, int code, std::string message = {});
  void send_rtr(operation& receive, const rtr_body& request);
  // Gives the receive to a transport after `refused` in the order of preference.
  void start_behind(operation& receive, const transport& refused, const rts_body& rts);
  // A new process has this rank.
  void admit(int rank);

 private:
  static int read_rts(packet& outgoing, std::size_t offset, void* destination, std::size_t bytes);
  std::optional<cu::pointer_info> describe_gpu(const memory& range, transfer_state& described);
  std::span<transport* const> transports_to(int rank) const;
  bool start_with(std::span<transport* const> choices, operation& receive, const rts_body& rts);
  void refuse_receive(operation& receive);
  transport* sender_of(transport_kind kind);
  void advance_busy();

  messenger_context& context_;
  packet_channel& channel_;
  std::size_t in_flight_ = 0;  // number of transfers in progress
  dma_rndv dma_;
  cuda_ipc_rndv cuda_ipc_;
  cma_rndv cma_;
  shm_ring_rndv shm_;
  ucx_rndv ucx_;
  // The last one is for peers on other hosts, the others are for peers on this node.
  std::array<transport*, 5> all_{&dma_, &cuda_ipc_, &cma_, &shm_, &ucx_};
};

}  // namespace pl::messaging
