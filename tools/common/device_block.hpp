// SPDX-License-Identifier: Apache-2.0
// Device memory for measuring copies: as applications have it, unlike gpu.hpp's device_memory, whose SYNC_MEMOPS changes how
// CUDA's own copies wait.
#pragma once

#include "tools/common/gpu.hpp"

namespace pl::tools {

// Device memory as an application has it: plain cuMemAlloc in the primary context of a device, no attribute set.
class device_block {
 public:
  device_block(const gpu_session& gpu, int ordinal, std::uint64_t bytes);
  ~device_block();
  device_block(const device_block&) = delete;
  device_block& operator=(const device_block&) = delete;
  cu::device_ptr get() const { return pointer_; }
  // Synchronous; data of other streams must be complete.
  void write(std::uint64_t offset, const void* source, std::uint64_t bytes) const;
  void read(std::uint64_t offset, void* target, std::uint64_t bytes) const;
  void set(std::uint64_t offset, unsigned char value, std::uint64_t bytes) const;

 private:
  template <class Work>
  void inside(Work&& work) const;
  const gpu_session& gpu_;
  cu::device_t device_ = 0;
  cu::context_t context_ = nullptr;
  cu::device_ptr pointer_ = 0;
};

}  // namespace pl::tools
