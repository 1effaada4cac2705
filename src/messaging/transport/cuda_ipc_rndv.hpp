// SPDX-License-Identifier: Apache-2.0
// Rendezvous by CUDA IPC: the receiver copies directly from the sender's GPU memory.
//
// From 64 KiB to some MiB the bottleneck is not the link but the receiver's CPU (the driver takes 2 us to queue a copy,
// and 1 us more for the word that signals its end) and the pause between two copies of a stream (4 us). So copies that
// can start at the same time are queued as one list by one call with one such word, at half the cost for each, and lists
// take turns on several streams. A single small message uses the copy planner's copy kernel, which starts faster than a
// copy engine but is slower with many messages.
//
// Owns: the opened allocations of other processes, and the copies in progress.
// Threads: as transport.hpp. Errors: those of the driver and the planner; memory that IPC does not reach is not offered.
#pragma once

#include <span>
#include <vector>

#include "copy/completion.hpp"
#include "messaging/transport/cuda_ipc_cache.hpp"
#include "messaging/transport/transport.hpp"

namespace pl::messaging {

// This transport's part of the state of a transfer, at the receiver. Either `mark` or `pending` is used.
struct cuda_ipc_transfer {
  cuda_ipc_cache::opened* opened = nullptr;
  std::uint64_t source = 0;  // address of the message, as mapped in this process
  copy_streams::mark mark;
  copy::completion pending;
};

class cuda_ipc_rndv final : public transport {
 public:
  explicit cuda_ipc_rndv(rendezvous& owner);
  void offer(operation& send, const std::optional<cu::pointer_info>& gpu, rts_body& rts) override;
  bool start_receive(operation& receive, const rts_body& rts) override;
  void advance() override;
  bool abort(operation& op, const abort_reason& reason) override;
  void forget(int rank) override { cache_.forget(rank); }
  // Whether messages from GPU memory to pageable memory go through the ring.
  bool takes_ring_to_pageable() const;

 private:
  bool suits(const operation& receive, const rts_body& rts) const;
  bool is_better_by_ring(const operation& receive) const;
  int device_for_host() const;
  bool begin_by_planner(operation& receive);
  void submit_copies();
  void submit_list(std::span<operation* const> list);
  void advance(operation& op);

  cuda_ipc_cache cache_;
  int usual_device_ = 0;           // ordinal of the GPU whose memory was sent or received into last
  std::vector<operation*> ready_;  // operations in progress that have not been queued
  std::size_t ready_bytes_ = 0;
  std::size_t queued_copies_ = 0;  // between GPUs
};

}  // namespace pl::messaging
