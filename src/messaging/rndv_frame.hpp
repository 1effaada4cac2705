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

// A truth value that another process wrote: every byte but 0 means true, where a bool with another value than 0 and 1 means
// nothing.
class wire_flag {
 public:
  constexpr wire_flag(bool value = false) noexcept : byte_(value ? 1 : 0) {}
  constexpr operator bool() const noexcept { return byte_ != 0; }

 private:
  std::uint8_t byte_;
};

// Behind the frame `rts`: the ways to reach the message's memory. Each transport fills its own members in offer().
struct rts_body {
  wire_flag is_device = false;
  wire_flag has_ipc = false;
  wire_flag has_ring = false;
  wire_flag is_staged = false;  // ucx: the sender copies the message through chunks, because UCX cannot register its memory
  wire_flag has_cma = false;    // the receiver may read the message at `address` with process_vm_readv
  std::uint64_t address = 0;    // of the message in host memory
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
  wire_flag receiver_is_device = false;
  wire_flag is_raw_gpu = false;   // ucx: GPU pointers go to UCX as they are
  std::uint64_t bytes = 0;        // that the receiver wants
  std::uint64_t chunk_bytes = 0;  // ucx: of one tagged part
  std::uint64_t first_tag = 0;    // ucx: of the first part; the next ones count up
  std::uint64_t granted = 0;      // ucx: bytes whose receives are posted; the frame `parts` raises it
};

}  // namespace pl::messaging
