// SPDX-License-Identifier: Apache-2.0
#include "triggered/staging.hpp"

namespace pl::triggered {

result<staging_pool::ring> staging_pool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      ring out(this, std::move(free_.back()));
      free_.pop_back();
      return out;
    }
  }
  auto made = copy::pinned_buffer::make(context_, kRingBytes);
  if (!made) return made.error();
  const std::lock_guard lock(mutex_);
  free_.reserve(free_.size() + 1);
  return ring(this, std::move(made).value());
}

staging_pool::ring::~ring() {
  if (pool_ == nullptr) return;
  const std::lock_guard lock(pool_->mutex_);
  pool_->free_.push_back(std::move(memory_));
}

}  // namespace pl::triggered
