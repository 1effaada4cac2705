// SPDX-License-Identifier: Apache-2.0
// GPU memory that another process, or another context of this one, may write into from its own GPU.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "copy/gpu_context.hpp"

namespace pl::triggered {

// Identifies a process across all hosts: random, renewed after a fork.
struct process_token {
  std::uint64_t low = 0, high = 0;
  static process_token current();
  bool operator==(const process_token&) const = default;
};

// What a peer needs to access an allocation of `owner`. Plain bytes, which are sent unchanged.
struct memory_key {
  process_token owner;
  std::uint64_t address = 0;  // in the owner
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;     // of `address` in the exported allocation
  std::uint64_t buffer_id = 0;  // of the allocation, in the owner
  cu::uuid_t device{};
  cu::ipc_mem_handle_t handle{};
  std::int32_t device_ordinal = -1;  // in the owner
  std::uint32_t is_exported = 0;     // 0: only within the owner's process
};

// EINVAL: not device memory, or bytes outside the allocation. Memory that legacy IPC cannot export (VMM, pools) gets a key
// for this process only.
result<memory_key> export_memory(const copy::gpu_context& context, cu::device_ptr pointer, std::size_t bytes);

// Opens memory of other processes. An allocation is opened once and stays open until this object ends or close() is called.
// The owner must not free it before. Thread-safe.
class memory_importer {
 public:
  explicit memory_importer(const copy::gpu_context& context) : context_(context) {}
  ~memory_importer();
  memory_importer(const memory_importer&) = delete;
  memory_importer& operator=(const memory_importer&) = delete;

  // The address of the memory for this context's GPU. ENOTSUP, with the reason: the GPU cannot access it.
  result<cu::device_ptr> open(const memory_key& key);
  // Closes the whole allocation, for an owner that gave it a single key.
  void close(const memory_key& key);

 private:
  result<cu::device_ptr> open_here(const memory_key& key);
  result<cu::device_ptr> open_exported(const memory_key& key);
  copy::gpu_context context_;
  std::mutex mutex_;
  struct place {
    std::uint64_t low, high, buffer_id;
    auto operator<=>(const place&) const = default;
  };
  std::map<place, cu::device_ptr> open_;
};

}  // namespace pl::triggered
