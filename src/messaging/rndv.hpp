// SPDX-License-Identifier: Apache-2.0
// Rendezvous: the sender's RTS (ready to send), the receiver's RTR (ready to receive), and the state of a transfer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "copy/completion.hpp"
#include "messaging/request_state.hpp"
#include "messaging/transport/cuda_ipc_cache.hpp"
#include "messaging/transport/pinned_pool.hpp"
#include "messaging/transport/shm_ring.hpp"
#include "messaging/transport/ucx_fabric.hpp"

namespace pl::messaging {

// Behind the frame `rts`: the ways to reach the message's memory.
struct rts_body {
  bool is_device = false;
  bool has_ipc = false;
  bool has_ring = false;
  bool is_staged = false;     // ucx: the sender copies the message through chunks, because UCX cannot register its memory
  bool has_cma = false;       // the receiver may read the message at `address` with process_vm_readv
  std::uint64_t address = 0;  // of the message in host memory
  std::uint64_t withdrawals = 0;  // the queue's count when this was sent
  std::uint64_t buffer_id = 0;    // CUDA's, of the exported allocation
  std::uint64_t ipc_offset = 0;   // of the message in it
  cu::ipc_mem_handle_t ipc{};
  shm_ring::name ring;
};

// Behind the frame `rtr`, from the receiver.
struct rtr_body {
  transport_kind transport = transport_kind::none;
  bool receiver_is_device = false;
  bool is_raw_gpu = false;        // ucx: GPU pointers go to UCX as they are
  std::uint64_t bytes = 0;        // that the receiver wants
  std::uint64_t chunk_bytes = 0;  // ucx: of one tagged part
  std::uint64_t first_tag = 0;    // ucx: of the first part; the next ones count up
  std::uint64_t granted = 0;      // ucx: bytes whose receives are posted; the frame `parts` raises it
};

// A copy between a chunk and the message's memory, which may still be pending.
struct chunk_copy {
  copy::completion pending;
  bool is_pending = false;
};

constexpr std::size_t kChunksUnderWay = 4;
// Read from other processes' memory in one round of progress: everything else waits for it, some 50 us.
constexpr std::size_t kMaxCmaBytesPerRound = 512 << 10;

// One side of a transfer.
struct transfer_state {
  messenger_core* core = nullptr;  // of a send in place
  rts_body rts;  // the sender's, valid until its packet has left
  transport_kind transport = transport_kind::none;
  touch access = touch::any;
  int device_ordinal = -1;
  std::uint64_t wanted = 0;  // bytes that move
  std::uint64_t chunk = 0;
  std::uint64_t started = 0;  // bytes whose first step has begun
  std::uint64_t ended = 0;    // bytes whose last step is over
  std::uint64_t first_tag = 0;
  std::uint64_t granted = 0;  // ucx: bytes whose receives the receiver has posted, as far as the sender knows
  int code = 0;               // first failure: the remaining chunks still move, without being copied
  std::string message;
  bool is_receive = false;
  bool is_for_device = false;  // ring, sender: the receiver empties it by GPU copies
  bool is_confirmed = false;   // the target of a put has acknowledged it, and the local send has not completed yet
  int confirmed_code = 0;
  std::uint64_t lost_ns = 0;  // when its peer was lost
  bool is_withdrawn = false;  // ucx: nothing more is sent or received
  bool is_direct = false;     // ucx: parts lie in the message's own memory
  bool is_raw_gpu = false;
  bool is_retracted = false;      // ucx, sender: cancelling was requested and the receiver has not answered yet
  bool is_revoked = false;        // the caller has its memory back: what still moves bypasses it
  bool is_checked = false;        // cuda_ipc, cma: all was read, and the sender must still confirm that it was the message
  std::uint64_t withdrawals = 0;  // the queue's count when the RTS was sent
  remote_data data;               // ucx, receiver: the handle of the data, released if it is not received

  // ucx: active parts, in order of their offsets modulo their number
  struct part : ucx_part {
    operation* op = nullptr;
    std::uint64_t offset = 0, bytes = 0;
    std::byte* chunk = nullptr;  // from the pinned pool; null if direct
    bool is_busy = false;        // with UCX
    bool is_arrived = false;     // UCX is done with it
    bool is_filling = false;     // its copy is under way
    bool is_scratch = false;     // received into `scratch`, since the message's memory was taken back
    int code = 0;                // UCX's result
    chunk_copy copy;
  };
  // Allocated for ucx only: they are the largest part of this struct.
  std::unique_ptr<std::array<part, kChunksUnderWay>> parts;
  std::array<std::byte, 8> scratch;  // too short for any part: UCX drops what does not fit
  void make_parts() { parts = std::make_unique<std::array<part, kChunksUnderWay>>(); }
  unsigned parts_busy = 0;

  // cuda_ipc, receiver: one of the two completions
  cuda_ipc_cache::opened* ipc_source = nullptr;
  std::uint64_t source = 0;  // the message's address in this process (cuda_ipc) or in its sender's (cma)
  copy_streams::mark ipc_mark;
  copy::completion ipc_copy;
};

}  // namespace pl::messaging
