// SPDX-License-Identifier: Apache-2.0
// Device memory of a window as other processes of this host reach it: CUDA IPC maps it there, and their copies need
// nothing from its owner.
#pragma once

#include <cstdint>

#include "base/checked_math.hpp"
#include "base/status.hpp"
#include "cuda/driver_table.hpp"

namespace pl::mpi {

// What another process has to know. Plain bytes, for messages.
struct exported_memory {
  cu::ipc_mem_handle_t handle{};
  std::uint64_t offset = 0;  // of the window in the allocation
};

// EINVAL: the bytes leave their allocation. ENOTSUP: CUDA IPC does not export this memory (VMM, pools).
result<exported_memory> export_memory(address_range bytes);

// Move-only. The owner's memory is not returned to the GPU before this object is destroyed.
class imported_memory {
 public:
  imported_memory() = default;
  // On the GPU of `own_memory`, device memory of this process; if that is 0, on the current context's, or the first one.
  // ENOTSUP: this process does not use CUDA, or cannot reach the memory.
  static result<imported_memory> open(const exported_memory& exported, std::uint64_t own_memory);
  imported_memory(imported_memory&& other) noexcept;
  imported_memory& operator=(imported_memory&& other) noexcept;
  ~imported_memory() { close(); }
  std::uint64_t pointer() const noexcept { return base_ + offset_; }

 private:
  void close() noexcept;
  std::uint64_t base_ = 0, offset_ = 0;
  int device_ordinal_ = -1;
  cu::context_t context_ = nullptr;
};

}  // namespace pl::mpi
