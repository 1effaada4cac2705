// SPDX-License-Identifier: Apache-2.0
#include "triggered/flag_words.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "arch/mmio.hpp"
#include "base/env.hpp"
#include "base/two_views.hpp"

namespace pl::triggered {

result<std::unique_ptr<word_pool>> word_pool::make(const copy::gpu_context& context, unsigned channels) {
  std::unique_ptr<word_pool> out(new word_pool(context, channels));
  if (auto made = out->allocate(); !made) return made.error();
  out->map();
  if (!out->is_mapped()) out->open_stuck_release();
  out->used_.resize(channels);
  return out;
}

status word_pool::allocate() {
  auto use = copy::context_use::enter(context_);
  if (!use) return use.error();
  const auto& cuda = *context_.cuda;
  if (const auto rc = cuda.cuMemAlloc_v2(&gpu_, size_bytes()); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "memory for the words of " + std::to_string(channels_) + " channels");
  auto pinned = copy::pinned_buffer::make(context_, std::size_t{channels_} * sizeof(host_words));
  if (!pinned) return pinned.error();
  host_ = std::move(pinned).value();
  return {};
}

void word_pool::map() {
  copy::mapping_cache::options wanted;
  wanted.sweep_ms = 0;  // it holds one mapping for as long as it lives
  wanted.backend = env_read("PEERLANE_BACKEND").text;
  cache_ = std::make_unique<copy::mapping_cache>(wanted);
  const auto info = cu::inspect_pointer(*context_.cuda, gpu_);
  if (!info) {
    why_unmapped_ = info.error().message;
    return;
  }
  auto found = cache_->find(*context_.cuda, *info, gpu_, size_bytes());
  if (found) mapped_ = std::move(found).value();
  else why_unmapped_ = found.error().message;
}

void word_pool::open_stuck_release() {
  auto made = stuck_release::make(context_);
  if (made) stuck_release_ = std::move(made).value();
  else why_no_stuck_release_ = made.error().message;
}

word_pool::~word_pool() {
  stuck_release_.reset();
  mapped_.end();
  cache_.reset();
  if (gpu_ == 0 || !context_.is_alive()) return;
  if (auto use = copy::context_use::enter(context_)) static_cast<void>(context_.cuda->cuMemFree_v2(gpu_));
}

result<unsigned> word_pool::take() {
  const auto free = std::find(used_.begin(), used_.end(), false);
  if (free == used_.end())
    return failure{ENOSPC,
                   "all " + std::to_string(channels_) + " channels are in use: close some, or open the context with more"};
  const auto index = static_cast<unsigned>(free - used_.begin());
  gpu_words fresh;
  std::memset(&fresh, 0, sizeof fresh);
  std::fill(std::begin(fresh.graph_ack), std::end(fresh.graph_ack), 1);
  fresh.one = 1;
  auto use = copy::context_use::enter(context_);
  if (!use) return use.error();
  const auto& cuda = *context_.cuda;
  if (const auto rc = cuda.cuMemcpyHtoD_v2(gpu(index), &fresh, sizeof fresh); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "a channel's words");
  std::memset(&host(index), 0, sizeof(host_words));
  *free = true;
  return index;
}

void word_pool::give_back(unsigned index) noexcept { used_[index] = false; }

void word_pool::store(unsigned index, std::size_t offset, std::uint64_t value) const noexcept {
  arch::publish_to_device(mapped_.type);
  auto* const word = reinterpret_cast<std::uint64_t*>(mapped_.data + std::size_t{index} * sizeof(gpu_words) + offset);
  before_store_in_view(gpu(index) + offset);
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
  arch::publish_to_device(mapped_.type);
}

void word_pool::poison_all(unsigned index, std::uint64_t value, bool with_staged) const noexcept {
  if (stuck_release_ != nullptr) stuck_release_->poison(gpu(index), value);
  if (!is_mapped()) return;
  for (const auto offset : kWaitedWords) store(index, offset, value);
  if (with_staged) store(index, offsetof(gpu_words, staged), value);
}

std::uint64_t word_pool::load(unsigned index, std::size_t offset) const noexcept {
  arch::order_before_reads(mapped_.type);
  const auto* const word =
      reinterpret_cast<const std::uint64_t*>(mapped_.data + std::size_t{index} * sizeof(gpu_words) + offset);
  const auto value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  after_load_in_view(gpu(index) + offset);
  arch::order_after_reads(mapped_.type);
  return value;
}

}  // namespace pl::triggered
