// SPDX-License-Identifier: Apache-2.0
// Copies between pageable host memory and device memory that the channels of a gpu_queues reach, such as memory of another
// process: through pinned memory of our own, with several CPU threads (ring_job.hpp). Needs no CUDA.
//
// Not thread-safe: one copy at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "copy/gpu_queues.hpp"

namespace pl::copy {

class queue_ring {
 public:
  // Six threads take out of pinned memory at about the link's rate. More than four are no faster at filling it, with stores
  // that bypass the caches (H200, 16 MiB: gets of 37 GB/s by four and 46 by six threads, puts of 41 and 39).
  static constexpr unsigned kMaxThreads = 6, kMaxFillers = 4;
  // Allocates and binds 8 MiB of pinned memory. `threads`, from 1 to kMaxThreads, includes the caller; fewer are used if the
  // process was started with fewer CPUs. ENOMEM; else the errors of dma::address_space::bind_host.
  static result<std::unique_ptr<queue_ring>> open(std::shared_ptr<gpu_queues> queues, unsigned threads = kMaxThreads);
  ~queue_ring();
  queue_ring(const queue_ring&) = delete;
  queue_ring& operator=(const queue_ring&) = delete;

  // `device_address` is the channels' address, of this GPU's memory. On return the bytes are at their destination. EIO,
  // ETIMEDOUT: the channel has failed and touches no memory any more; part of the destination may be written.
  status to_device(std::uint64_t device_address, const void* source, std::size_t bytes);
  status to_host(void* destination, std::uint64_t device_address, std::size_t bytes);

 private:
  struct state;
  explicit queue_ring(std::unique_ptr<state> made);
  status run(gpu_queues::path way, std::uint64_t device_address, std::uint64_t host_address, std::size_t bytes);
  std::unique_ptr<state> state_;
};

}  // namespace pl::copy
