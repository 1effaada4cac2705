// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/pinned_pool.hpp"

#include <sys/mman.h>

namespace pl::messaging {

pinned_pool::~pinned_pool() {
  for (auto& each : blocks_) {
    each.pinned = {};
    munmap(each.data, chunk_bytes_);
  }
}

std::byte* pinned_pool::take(int device_ordinal) {
  if (!free_.empty()) {
    std::byte* const chunk = free_.back();
    free_.pop_back();
    return chunk;
  }
  if (blocks_.size() == kMaxChunks) return nullptr;
  void* const data = mmap(nullptr, chunk_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, chunk_bytes_, MADV_DONTFORK);
  block made{static_cast<std::byte*>(data), {}};
  if (planner_ != nullptr && device_ordinal >= 0)
    if (auto pinned = planner_->register_host_memory(data, chunk_bytes_, device_ordinal)) made.pinned = *std::move(pinned);
  blocks_.push_back(std::move(made));
  return blocks_.back().data;
}

}  // namespace pl::messaging
