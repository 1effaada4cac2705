// SPDX-License-Identifier: Apache-2.0
// Copies to and from host memory that is not pinned, in a pipeline: the copy engine moves chunk i between the GPU and a
// ring of pinned chunks while CPU threads copy the neighbouring chunks between the ring and the application's memory.
// The threads share each chunk, so that the first chunk takes the CPU no longer than the others, and no thread is left
// alone with the last one.
#pragma once

#include <cstddef>
#include <memory>

#include "copy/copy_engine.hpp"
#include "copy/transfer.hpp"
#include "copy/worker_pool.hpp"

namespace pl::copy {

class bounce_ring {
 public:
  struct options {
    // A power of two, at least 64 KiB. Each chunk costs the link about 3 us beyond its bytes, and the driver 4 us (16
    // MiB from pageable memory by 4 threads on H200: 452 us in chunks of 512 KiB, 410 of 1 MiB; to it by 8 threads 680
    // and 490).
    std::size_t chunk_bytes = 1u << 20;
    unsigned chunks = 16;  // at least 2
  };
  // `engine` and `pool` must outlive it. The ring is allocated at the first copy.
  bounce_ring(copy_engine& engine, worker_pool& pool, options wanted);
  ~bounce_ring();
  bounce_ring(const bounce_ring&) = delete;
  bounce_ring& operator=(const bounce_ring&) = delete;

  // Linear copies of any size; on return the data is at its destination. `width` counts CPU threads, including the
  // caller. One copy at a time: a second caller waits. After a failure part of the destination may be written, but
  // nothing is in flight.
  status to_host(void* dst, std::uint64_t src, std::size_t bytes, unsigned width);
  status to_device(std::uint64_t dst, const void* src, std::size_t bytes, unsigned width);
  // Frees the ring's memory until the next copy. False: a copy uses it.
  bool release();

 private:
  struct state;
  std::unique_ptr<state> state_;
};

// The same by registering the application's pages for the duration of this copy. The registration is not kept: CUDA is
// not told when an application unmaps memory, so a registration that outlives the call could silently refer to other
// pages than the address does. A failure such as EBUSY (somebody else has registered part of the range) changes
// nothing.
status copy_registered(copy_engine& engine, const transfer& copy);

}  // namespace pl::copy
