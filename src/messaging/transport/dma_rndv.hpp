// SPDX-License-Identifier: Apache-2.0
// Rendezvous by DMA channels: the receiver's copy engine reads the message from the sender's GPU memory, on the same GPU or
// on another one. It makes no CUDA call, and the GPU does not switch between processes. It also reaches memory that CUDA IPC
// does not export.
//
//   sender                                      receiver
//   exports the memory object, once        -->  imports it for its own channels, once
//   RTS: object, offset in it                   copies that can start at the same time are one list of the engine
//                                         <--   ATS
//
// Owns: the objects that this process has exported and imported (copy/memory_exchange.hpp), and the copies in progress.
// Threads: as transport.hpp. Errors: an error of the channel ends the messages in progress in it. If memory cannot be
// exported or accessed, the next transport takes the message.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "copy/memory_exchange.hpp"
#include "copy/time_limit.hpp"
#include "messaging/transport/transport.hpp"

namespace pl::messaging {

// This transport's part of the state of a transfer, at the receiver.
struct dma_transfer {
  copy::memory_exchange::pull pull;  // its blocks, until they are queued
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
  // Why the last message used another transport; empty: none had to.
  const std::string& refusal() const noexcept { return memories_.refusal(); }

 private:
  void submit_ready();
  status submit_list(std::span<operation* const> list);
  void advance(operation& op);
  void check_failures();

  copy::memory_exchange memories_;
  std::vector<operation*> ready_;  // operations in progress that have not been queued
  unsigned polls_ = 0;
  std::map<const dma::channel*, copy::stall_watch> watches_;
};

}  // namespace pl::messaging
