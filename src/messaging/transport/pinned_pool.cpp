// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/pinned_pool.hpp"

namespace pl::messaging {

std::byte* pinned_pool::take(int device_ordinal) {
  if (!free_.empty()) {
    std::byte* const chunk = free_.back();
    free_.pop_back();
    return chunk;
  }
  if (blocks_.size() == kMaxChunks) return nullptr;
  auto pages = unforked_pages::make(chunk_bytes_);
  if (!pages) return nullptr;
  block made{*std::move(pages), {}};
  std::byte* const data = made.pages.data();
  if (planner_ != nullptr && device_ordinal >= 0)
    if (auto pinned = planner_->register_host_memory(data, chunk_bytes_, device_ordinal)) made.pinned = *std::move(pinned);
  blocks_.push_back(std::move(made));
  return data;
}

}  // namespace pl::messaging
