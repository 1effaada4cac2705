// SPDX-License-Identifier: Apache-2.0
// What travels behind the frames of a rendezvous: the sender's RTS (ready to send) and the receiver's RTR (ready to
// receive). Part of the wire format (wire_frame.hpp): plain bytes.
//
// Owns: nothing. Threads: any. Errors: whoever receives one checks its length and what it asks for.
#pragma once

#include <cstdint>

#include "copy/handed_memory.hpp"
#include "cuda/driver_table.hpp"
#include "messaging/request_state.hpp"
#include "messaging/transport/shm_ring.hpp"

namespace pl::messaging {

// Behind the frame `rts`: the ways to reach the message's memory. Each transport fills its own members in offer().
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
  std::uint64_t handed_id = 0;  // dma: which of the sender's handed memories has the message; 0: none
  copy::handed_place handed;    // dma: where a peer finds it
  std::uint64_t pointer = 0;    // dma: of the message, the sender's address
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

}  // namespace pl::messaging
