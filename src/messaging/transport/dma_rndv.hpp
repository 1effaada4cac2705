// SPDX-License-Identifier: Apache-2.0
// DMA channels: the receiver's copy engine reads the message in the sender's GPU memory, on the same GPU or on another one.
// No CUDA call and no turn of the GPU's between processes; also memory that CUDA IPC does not export.
//
//   sender                                      receiver
//   hands over the memory object, once     -->  imports it for its own channels, once
//   RTS: which object, where in it              copies that can start at the same time are one list of the engine
//                                         <--   ATS
//
// Owns: what this process has handed over and imported (copy/memory_exchange.hpp), and the copies under way.
// Threads: as transport.hpp. Errors: those of the channel, which end the messages under way in it; where memory cannot be
// handed over or reached the next transport takes the message.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "copy/memory_exchange.hpp"
#include "copy/patience.hpp"
#include "messaging/transport/transport.hpp"

namespace pl::messaging {

// Its slice of a transfer's state, at the receiver.
struct dma_transfer {
  copy::memory_exchange::pull pull;  // its blocks: until they are queued
  copy::gpu_queues::ticket queued;
};

class dma_rndv final : public transport {
 public:
  explicit dma_rndv(rendezvous& owner);
  void offer(operation& send, const std::optional<cu::pointer_info>& gpu, rts_body& rts) override;
  bool start_receive(operation& receive, const rts_body& rts) override;
  void advance() override;
  bool abort(operation& op, const abort_reason& reason) override;
  void forget(int rank) override { memories_.forget(rank); }
  // Why the last message went another way; empty: none had to.
  const std::string& refusal() const noexcept { return memories_.refusal(); }

 private:
  void submit_ready();
  status submit_list(std::span<operation* const> list);
  void advance(operation& op);
  void look_for_failures();

  copy::memory_exchange memories_;
  std::vector<operation*> ready_;  // of those under way, the ones that have not been queued
  unsigned polls_ = 0;
  std::map<const dma::channel*, copy::stall_watch> watches_;
};

}  // namespace pl::messaging
