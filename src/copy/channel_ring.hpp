// SPDX-License-Identifier: Apache-2.0
// Copies between pageable host memory and a GPU through pinned memory of our own that a DMA channel reads and writes:
// the channel moves chunk i while CPU threads copy the neighbouring chunks (ring_job.hpp). No chunk needs a CUDA call.
#pragma once

#include <cstddef>
#include <memory>

#include "copy/dma_engine.hpp"
#include "copy/worker_pool.hpp"

namespace pl::copy {

class channel_ring {
 public:
  struct options {
    std::size_t chunk_bytes = 1u << 20;  // a power of two, at least 64 KiB
    unsigned chunks = 16;                // at least 2
  };
  // `engine` and `pool` must outlive it. The ring is allocated and bound at the first copy.
  channel_ring(dma_engine& engine, worker_pool& pool, options wanted);
  ~channel_ring();
  channel_ring(const channel_ring&) = delete;
  channel_ring& operator=(const channel_ring&) = delete;

  // A linear copy of any size to the host or to the device; `device` is the driver's information about the device side.
  // On return the data is at its destination. `width` counts CPU threads, including the caller. One copy at a time: a
  // second caller waits. EIO: the channel has ended; part of the destination may be written, but nothing is in flight.
  // ENOTSUP: not possible for this memory.
  status copy(const transfer& whole, const cu::pointer_info& device, unsigned width);
  // Frees the ring's memory until the next copy. False: a copy uses it.
  bool release();

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace pl::copy
