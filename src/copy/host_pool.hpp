// SPDX-License-Identifier: Apache-2.0
// A large piece of host memory for copies, with huge pages if possible, on the GPU's NUMA node, and pinned piece by
// piece by a thread while it is already in use. Creating one takes the same time for any size.
//
// Pieces are pinned from the start onwards. What is not pinned yet is ordinary memory: copies treat it as pageable
// memory, and are correct. A piece is page-locked in place, so nothing moves under the application.
//
// Thread-safe. A forked child does not have the memory, because pinned pages must not be copied on write.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/status.hpp"
#include "copy/gpu_context.hpp"

namespace pl::copy {

class host_pool {
 public:
  struct options {
    std::uint64_t size_bytes = 0;
    int device_ordinal = 0;  // near which it lies, and whose context pins it; all GPUs can reach it
    std::uint64_t piece_bytes = std::uint64_t{256} << 20;  // the unit of pinning; a power of two, at least 64 KiB
    std::function<std::uint64_t()> available_bytes;        // memory that the machine has left; empty: asks the kernel
    // Called by the pool's thread for each piece that was pinned.
    std::function<void(std::byte* data, std::uint64_t size_bytes)> pinned;
  };

  // EINVAL: no bytes, or another piece size. ENOMEM: more than the machine has left, or no address space. Also the
  // driver's reasons.
  static result<std::unique_ptr<host_pool>> make(const cu::driver_table& cuda, const options& wanted);
  // Stops pinning, unpins and unmaps. Precondition: no copy of the memory is in progress.
  ~host_pool();
  host_pool(const host_pool&) = delete;
  host_pool& operator=(const host_pool&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  std::uint64_t pinned_bytes() const noexcept { return pinned_bytes_.load(std::memory_order_acquire); }
  int numa_node() const noexcept { return numa_node_; }  // -1: unknown, the kernel places the pages
  // Why pinning has stopped early; success while it continues and when everything is pinned.
  status pinning() const;
  // Waits until everything is pinned. ETIMEDOUT; the reason of pinning(); EACCES in a forked child. A negative timeout
  // means no limit.
  status wait(std::int64_t timeout_ms) const;

 private:
  host_pool(const gpu_context& context, const options& wanted);
  status map();
  void pin_all();
  status pin_piece(std::uint64_t begin, std::uint64_t end);
  bool must_stop() const noexcept { return stops_.load(std::memory_order_relaxed); }

  const gpu_context context_;
  const std::uint64_t size_bytes_, piece_bytes_;
  const std::function<std::uint64_t()> available_bytes_;
  const std::function<void(std::byte*, std::uint64_t)> pinned_;
  const std::uint32_t epoch_;
  std::byte* data_ = nullptr;
  std::byte* mapped_ = nullptr;  // start of the reservation, in which data_ is aligned
  std::uint64_t mapped_bytes_ = 0;
  int numa_node_ = -1;
  std::atomic<std::uint64_t> pinned_bytes_{0};
  std::atomic<bool> stops_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool has_ended_ = false;  // the thread has nothing left to do
  status outcome_;
  std::thread thread_;
};

// -1 if the machine does not report it.
int numa_node_of_gpu(const cu::driver_table& cuda, int device_ordinal, const std::string& sysfs_root = "/sys");

}  // namespace pl::copy
