// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/staging_pool.hpp"

#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.hpp"

namespace pl::mpi {
namespace {

failure no_memory(std::size_t bytes) {
  return {ENOMEM, format("%zu bytes of host memory for a message: %s", bytes, std::strerror(errno))};
}

}  // namespace

staging_pool::block::block(block&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      is_shared_(other.is_shared_),
      memory_(std::move(other.memory_)),
      is_pageable_(std::exchange(other.is_pageable_, false)) {}

staging_pool::block& staging_pool::block::operator=(block&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  owner_ = std::exchange(other.owner_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = other.bytes_;
  is_shared_ = other.is_shared_;
  memory_ = std::move(other.memory_);
  is_pageable_ = std::exchange(other.is_pageable_, false);
  return *this;
}

void staging_pool::block::give_back() noexcept {
  if (auto* const owner = std::exchange(owner_, nullptr)) owner->take_back(*this);
  if (std::exchange(is_pageable_, false)) munmap(data_, bytes_);
  data_ = nullptr;
}

// Powers of two while small; then quarters of them, so that at most a fifth is wasted.
std::size_t staging_pool::rounded(std::size_t bytes) noexcept {
  if (bytes <= kSmallest) return kSmallest;
  if (bytes <= kLargestShared) return std::bit_ceil(bytes);
  const std::size_t step = std::bit_floor(bytes) / 4;
  return (bytes + step - 1) / step * step;
}

unsigned staging_pool::class_of(std::size_t rounded_bytes) noexcept {
  return static_cast<unsigned>(std::countr_zero(rounded_bytes) - std::countr_zero(kSmallest));
}

std::optional<staging_pool::block> staging_pool::take_idle(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  block out;
  if (size <= kLargestShared) {
    auto& idle = small_[class_of(size)];
    if (idle.empty()) return std::nullopt;
    out.data_ = idle.back();
    idle.pop_back();
    out.bytes_ = size;
    out.is_shared_ = true;
  } else {
    const auto found = large_.find(size);
    if (found == large_.end() || found->second.empty()) return std::nullopt;
    out = std::move(found->second.back());
    found->second.pop_back();
    idle_bytes_ -= size;
  }
  out.owner_ = this;
  return out;
}

result<staging_pool::block> staging_pool::make(std::size_t bytes, const result<copy::gpu_context>& context) {
  const std::size_t size = rounded(bytes);
  if (size > kLargestShared) return make_large(size, context);
  auto slab = make_large(kSlab, context);
  if (!slab) return slab.error();
  slab->owner_ = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& idle = small_[class_of(size)];
    // Room for every part there is: giving one back must not need memory.
    idle.reserve(idle.capacity() + kSlab / size);
    for (std::size_t offset = 0; offset < kSlab; offset += size) idle.push_back(slab->data_ + offset);
    slabs_.push_back(std::move(*slab));
  }
  if (auto found = take_idle(bytes)) return std::move(*found);
  return make(bytes, context);  // other threads were quicker
}

result<staging_pool::block> staging_pool::make_large(std::size_t bytes, const result<copy::gpu_context>& context) {
  if (context) {
    if (auto pinned = copy::pinned_buffer::make(*context, bytes)) {
      block out;
      out.owner_ = this;
      out.data_ = pinned->data();
      out.bytes_ = bytes;
      out.memory_ = std::move(*pinned);
      return out;
    }
  }
  auto out = take_sparse(bytes);
  if (out) out->owner_ = this;
  return out;
}

result<staging_pool::block> staging_pool::take_sparse(std::size_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return no_memory(bytes);
  block out;
  out.data_ = static_cast<std::byte*>(address);
  out.bytes_ = bytes;
  out.is_pageable_ = true;
  return out;
}

void staging_pool::take_back(block& ended) noexcept {
  const std::lock_guard lock(mutex_);
  if (ended.is_shared_) {
    small_[class_of(ended.bytes_)].push_back(ended.data_);
    return;
  }
  if (idle_bytes_ + ended.bytes_ > idle_limit_) return;
  try {
    auto& idle = large_[ended.bytes_];
    idle.emplace_back();
    idle.back() = std::move(ended);
    idle_bytes_ += idle.back().bytes_;
  } catch (const std::bad_alloc&) {  // then it is not kept
  }
}

}  // namespace pl::mpi
