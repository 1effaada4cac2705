// SPDX-License-Identifier: Apache-2.0
// A large piece of host memory for copies: huge pages where the kernel has them, on the NUMA node of the GPU, and pinned
// piece by piece by a thread while it is in use. Making one takes no time that depends on its size.
//
// Pieces are pinned from the beginning on. What is not pinned yet is ordinary memory: copies go the way of pageable memory,
// and are right. A piece is page-locked where it lies, so nothing moves under the application.
//
// Any thread. The memory is not there in a forked child (pinned pages must not be copied on write).
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
    int device_ordinal = 0;  // near which it lies, and whose context pins it; all GPUs reach it
    std::uint64_t piece_bytes = std::uint64_t{256} << 20;  // what is pinned at a time; a power of two from 64 KiB on
    std::function<std::uint64_t()> available_bytes;        // what the machine has left; empty: asks the kernel
    // Called by the pool's thread for each piece that was pinned, while the pool lives.
    std::function<void(std::byte* data, std::uint64_t size_bytes)> pinned;
  };

  // EINVAL: no bytes, another piece size; ENOMEM: more than the machine has left, or address space; the driver's reasons.
  static result<std::unique_ptr<host_pool>> make(const cu::driver_table& cuda, const options& wanted);
  // Stops pinning, unpins and unmaps. No copy of the memory may be under way.
  ~host_pool();
  host_pool(const host_pool&) = delete;
  host_pool& operator=(const host_pool&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  std::uint64_t pinned_bytes() const noexcept { return pinned_bytes_.load(std::memory_order_acquire); }
  int numa_node() const noexcept { return numa_node_; }  // -1: not known, the kernel places the pages
  // Why pinning has stopped before the end; success while it goes on and when all is pinned.
  status pinning() const;
  // Until all is pinned. ETIMEDOUT; pinning()'s reason; EACCES in a forked child. Negative: without a limit.
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
  std::byte* mapped_ = nullptr;  // of what was reserved so that data_ is aligned
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

// What this process may still use, by the kernel's estimate and its control group's limit.
std::uint64_t available_host_bytes();
// -1: the machine does not say.
int numa_node_of_gpu(const cu::driver_table& cuda, int device_ordinal, const std::string& sysfs_root = "/sys");

}  // namespace pl::copy
