// SPDX-License-Identifier: Apache-2.0
// Announced messages: what the sender offers, what the receiver orders, and the state of a transfer under way.
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

namespace pl::link {

// Behind the frame of an announcement.
struct bulk_offer {
  bool is_device = false;
  bool has_ipc = false;
  bool has_ring = false;
  bool is_staged = false;         // network: its sender copies the message, host memory that UCX cannot have read
  bool has_pull = false;          // the receiver may try to read the message at `address`
  std::uint64_t address = 0;      // of the message in host memory
  std::uint64_t withdrawals = 0;  // of the lane, when this was offered
  std::uint64_t buffer_id = 0;    // CUDA's, of the exported allocation
  std::uint64_t ipc_offset = 0;   // of the message in it
  cu::ipc_mem_handle_t ipc{};
  shm_ring::name ring;
};

// Behind the frame `start`, from the receiver.
struct start_order {
  bulk_way way = bulk_way::none;
  bool receiver_is_device = false;
  bool is_raw_gpu = false;        // network: GPU pointers are given to UCX as they are
  std::uint64_t bytes = 0;        // that the receiver wants
  std::uint64_t chunk_bytes = 0;  // network: of one tagged part
  std::uint64_t first_tag = 0;    // network: of the first part; the next ones count up
  std::uint64_t granted = 0;      // network: bytes whose receives are posted; `parts` tells of more
};

// A copy between a chunk and the message's memory, maybe still under way.
struct chunk_copy {
  copy::completion pending;
  bool is_pending = false;
};

constexpr std::size_t kChunksUnderWay = 4;
// What is read from other processes' memory in one look at everything: all else waits no longer than that (some 50 us).
constexpr std::size_t kPullAtOnce = 512 << 10;

// One side of a transfer.
struct transfer_state {
  bulk_offer offer;  // announced by the sender: until its packet has left
  bulk_way way = bulk_way::none;
  touch how = touch::any;
  int device_ordinal = -1;
  std::uint64_t wanted = 0;  // bytes that move
  std::uint64_t chunk = 0;
  std::uint64_t started = 0;  // bytes whose first step has begun
  std::uint64_t ended = 0;    // bytes whose last step is over
  std::uint64_t first_tag = 0;
  std::uint64_t granted = 0;  // network: bytes for which the receiver has receives posted, as far as the sender was told
  int code = 0;               // first failure: the rest is moved without being copied
  std::string message;
  bool is_receive = false;
  bool is_for_device = false;  // ring, sender: the receiver's copies out of it are not the CPU's
  bool is_confirmed = false;   // the target of a put has it, and this side does not know yet that all has left
  int confirmed_code = 0;
  std::uint64_t lost_ns = 0;  // when its peer was lost
  bool is_withdrawn = false;  // network: nothing more comes or goes
  bool is_direct = false;     // network: parts lie in the message's own memory
  bool is_raw_gpu = false;
  bool is_retracted = false;      // network, sender: its cancelling was asked for; the receiver answers
  bool is_revoked = false;        // its memory is the caller's again: what still moves goes without it
  bool is_checked = false;        // ipc, pull: all was read, and the sender is asked whether it was the message
  std::uint64_t withdrawals = 0;  // of the lane, when its sender offered the memory
  remote_data data;               // network, receiver: what UCX moves, or has to be told at the end that it is not wanted

  // network: parts under way, in order of their offsets modulo their number
  struct part : bulk_part {
    operation* of = nullptr;
    std::uint64_t offset = 0, bytes = 0;
    std::byte* chunk = nullptr;  // of the pinned pool; null if direct
    bool is_busy = false;        // with UCX
    bool is_arrived = false;     // UCX is done with it
    bool is_filling = false;     // its copy is under way
    bool is_scratch = false;     // received into `scratch`, since the message's memory was taken back
    int code = 0;                // UCX's word
    chunk_copy copy;
  };
  // Of the network way only: they are most of what a transfer is.
  std::unique_ptr<std::array<part, kChunksUnderWay>> parts;
  std::array<std::byte, 8> scratch;  // too short for any part: UCX drops what does not fit
  void make_parts() { parts = std::make_unique<std::array<part, kChunksUnderWay>>(); }
  unsigned parts_busy = 0;

  // ipc, receiver: one of the two completions
  ipc_cache::opened* ipc_source = nullptr;
  std::uint64_t source = 0;  // of the message: its address here (ipc), at its sender (pull)
  copy_lanes::mark ipc_mark;
  copy::completion ipc_copy;
};

}  // namespace pl::link
