// SPDX-License-Identifier: Apache-2.0
// Bodies of the rendezvous frames: the sender's RTS (ready to send) and the receiver's RTR (ready to receive). Part of the
// wire format (wire_frame.hpp): plain bytes.
//
// Owns: nothing. Threads: any. Errors: the receiver of a body must check its length and its content.
#pragma once

#include <cstdint>

#include "copy/fd_memory.hpp"
#include "cuda/driver_table.hpp"
#include "messaging/request_state.hpp"
#include "messaging/transport/shm_ring.hpp"

namespace pl::messaging {

// A flag that another process has written. Any byte other than 0 means true; in a bool, a byte other than 0 and 1 would be
// undefined behaviour.
class wire_flag {
 public:
  constexpr wire_flag(bool value = false) noexcept : byte_(value ? 1 : 0) {}
  constexpr operator bool() const noexcept { return byte_ != 0; }

 private:
  std::uint8_t byte_;
};

// Follows the frame `rts`: how the receiver can access the message's memory. Each transport fills in its own members in
// offer().
struct rts_body {
  wire_flag is_device = false;
  wire_flag has_ipc = false;
  wire_flag has_ring = false;
  wire_flag is_staged = false;  // ucx: the sender copies the message through chunks, because UCX cannot register its memory
  wire_flag has_cma = false;    // the receiver may read the message at `address` with process_vm_readv
  std::uint64_t address = 0;    // of the message in host memory
  std::uint64_t withdrawals = 0;  // shm_queue::withdrawals() when the RTS was sent
  std::uint64_t buffer_id = 0;    // cuda_ipc: CUDA's id of the exported allocation
  std::uint64_t ipc_offset = 0;   // cuda_ipc: of the message in the allocation
  cu::ipc_mem_handle_t ipc{};
  std::uint64_t fd_memory_id = 0;   // dma: the sender's number of the exported memory that contains the message; 0: none
  copy::fd_memory_location handed;  // dma: where a peer finds that memory
  std::uint64_t pointer = 0;        // dma: address of the message in the sender
  shm_ring::name ring;
};

// Follows the frame `rtr`, from the receiver.
struct rtr_body {
  transport_kind transport = transport_kind::none;
  wire_flag receiver_is_device = false;
  wire_flag is_raw_gpu = false;   // ucx: pass GPU pointers to UCX
  std::uint64_t bytes = 0;        // number of bytes to send
  std::uint64_t chunk_bytes = 0;  // ucx: size of one tagged part
  std::uint64_t first_tag = 0;    // ucx: tag of the first part; each further part adds 1
  std::uint64_t granted = 0;      // ucx: bytes whose receives are posted; raised by the frame `parts`
};

}  // namespace pl::messaging
