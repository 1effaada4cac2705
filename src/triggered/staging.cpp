// SPDX-License-Identifier: Apache-2.0
#include "triggered/staging.hpp"

#include "base/log.hpp"

namespace pl::triggered {

result<staging_pool::ring> staging_pool::take(receive_engine* engine) {
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
  pinned own{*std::move(made), {}};
  if (engine != nullptr) {
    auto bound = engine->bind(own.memory.data(), own.memory.size_bytes());
    if (bound) own.bound = *std::move(bound);
    else PL_LOG(info, "stream: the copy engine does not reach what arrives: %s", bound.error().message.c_str());
  }
  const std::lock_guard lock(mutex_);
  free_.reserve(free_.size() + 1);
  return ring(this, std::move(own));
}

staging_pool::ring::~ring() {
  if (pool_ == nullptr) return;
  const std::lock_guard lock(pool_->mutex_);
  pool_->free_.push_back(std::move(own_));
}

}  // namespace pl::triggered
