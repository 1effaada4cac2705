// SPDX-License-Identifier: Apache-2.0
#include "collectives/schedule.hpp"

#include <algorithm>

namespace pl::collectives {

void schedule::copy(int self, place destination, place source, std::size_t bytes) {
  if (bytes == 0 || destination == source) return;
  if (!destination.is_device() && !source.is_device()) {
    steps_.push_back({.kind = step::kind_t::copy, .amount = bytes, .first = source, .out = destination});
    return;
  }
  const auto received = receive(self, destination, bytes);
  const auto sent = send(self, source, bytes);
  wait(received);
  wait(sent);
}

void schedule::combine(element type, reduction op, place first, place second, place out, std::size_t count) {
  if (count == 0) return;
  steps_.push_back({.kind = step::kind_t::combine,
                    .type = type,
                    .op = op,
                    .amount = count,
                    .first = first,
                    .second = second,
                    .out = out});
}

place schedule::scratch(std::size_t bytes, messaging::memory_kind kind) {
  constexpr std::size_t kAlignment = 64;
  if (kind == messaging::memory_kind::device) {
    const auto taken = combiner_->take(std::max(bytes, kAlignment));
    if (!taken) return problem_ = taken.error(), place{};
    device_blocks_.push_back(*taken);
    return {*taken, kind};
  }
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (kept_ == nullptr) kept_ = std::make_unique_for_overwrite<std::byte[]>(kKeptBytes);
  if (rounded <= kKeptBytes - kept_used_) {
    std::byte* const out = kept_.get() + kept_used_;
    kept_used_ += rounded;
    return {reinterpret_cast<std::uint64_t>(out), messaging::memory_kind::host};
  }
  blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(rounded));
  return {reinterpret_cast<std::uint64_t>(blocks_.back().get()), messaging::memory_kind::host};
}

place schedule::copy_of(int self, place source, std::size_t bytes) {
  const place out = scratch(bytes);
  copy(self, out, source, bytes);
  return out;
}

void schedule::clear() noexcept {
  constexpr std::size_t kKeptSteps = 1024;
  if (steps_.capacity() > kKeptSteps) steps_ = {};
  steps_.clear();
  messages_ = 0;
  kept_used_ = 0;
  blocks_.clear();
  for (const auto each : device_blocks_) combiner_->give_back(each);
  device_blocks_.clear();
  combiner_ = nullptr;
  problem_ = {};
}

}  // namespace pl::collectives
