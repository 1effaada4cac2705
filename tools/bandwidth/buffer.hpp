// SPDX-License-Identifier: Apache-2.0
// Memory that transfers read and write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "tools/bandwidth/gpu_set.hpp"
#include "tools/bandwidth/transfer_spec.hpp"

namespace pl::bandwidth {

// One side of a transfer. Not an owner. `address` is what GPUs use; `host` is what the CPU uses, null for device memory
// (BAR executors map it themselves). `gpu_reachable`: false for pageable memory, which only the CPU and cuMemcpy touch.
struct memory_view {
  place location;
  std::uint64_t address = 0;
  std::byte* host = nullptr;
  std::uint64_t bytes = 0;
  bool gpu_reachable = true;
};

struct host_memory_options {
  bool bind_near_gpu = true;  // false: --disableAffinity, the kernel places pages
};

// Keeps buffers and hands them out again: pinning 512 MiB takes longer than copying it. One thread.
// Host memory is mmap + mbind + cuMemHostRegister (portable), so that its NUMA node and page size are chosen, and checked
// after it was touched (node_of).
class buffer_pool {
 public:
  buffer_pool(gpu_set& gpus, const host_memory_options& options);
  ~buffer_pool();
  buffer_pool(const buffer_pool&) = delete;
  buffer_pool& operator=(const buffer_pool&) = delete;

  // The `slot`th buffer of at least `bytes` at `location`; the same arguments give the same memory until trim(), or until
  // more bytes of it are asked for: that frees what was there. `near_gpu` decides the node of host memory whose index is -1.
  // ENOMEM with what to do (smaller -b, ulimit -l).
  result<memory_view> get(const place& location, std::uint64_t bytes, unsigned slot, int near_gpu);
  // NUMA node that really holds the first page of host memory (move_pages); -1 if the kernel does not tell.
  int node_of(const memory_view& view) const;
  // Frees everything.
  void trim();

 private:
  struct entry;
  gpu_set& gpus_;
  host_memory_options options_;
  std::map<std::tuple<place, unsigned, int>, std::unique_ptr<entry>> entries_;
};

}  // namespace pl::bandwidth
