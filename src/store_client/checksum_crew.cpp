// SPDX-License-Identifier: Apache-2.0
#include "checksum_crew.hpp"

#include <algorithm>

#include "clock.hpp"
#include "crc32c.hpp"
#include "mmio.hpp"

namespace pl::store_client {
namespace {

constexpr unsigned kMostThreads = 8;
constexpr std::uint64_t kLongestPart = 4 << 20, kShortestPart = 256 << 10;
constexpr std::uint64_t kLooksNs = 200'000;
constexpr unsigned kPausesBetweenClocks = 32;  // about 1.5 us

}  // namespace

checksum_crew::~checksum_crew() {
  {
    const std::lock_guard hold(lock_);
    closing_ = true;
  }
  changed_.notify_all();
  for (auto& one : threads_) one.join();
}

// Under the lock.
void checksum_crew::start() {
  if (!threads_.empty()) return;
  const unsigned count = std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostThreads);
  for (unsigned i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
}

void checksum_crew::call() {
  {
    const std::lock_guard hold(lock_);
    start();
  }
  if (looking_.load(std::memory_order_relaxed) == 0) wake_another();
}

void checksum_crew::give(std::shared_ptr<value_part> part) {
  {
    const std::lock_guard hold(lock_);
    start();
    waiting_.push_back(std::move(part));
    given_.store(waiting_.size(), std::memory_order_relaxed);
    // Who looks takes it, or sees it on lying down.
    if (looking_.load(std::memory_order_relaxed) != 0 || called_ != 0) return;
  }
  wake_another();
}

bool checksum_crew::help() {
  const auto part = take();
  if (part != nullptr) sum(*part);
  return part != nullptr;
}

std::uint64_t checksum_crew::part_bytes(std::uint64_t left) noexcept {
  if (left <= kShortestPart) return left;
  return std::clamp(left / 4 / kShortestPart * kShortestPart, kShortestPart, kLongestPart);
}

void checksum_crew::sum(value_part& part) {
  part.crc = arch::crc32c(part.at, part.bytes);
  part.summed.store(true, std::memory_order_release);
}

std::shared_ptr<value_part> checksum_crew::take() {
  const std::lock_guard hold(lock_);
  if (waiting_.empty()) return {};
  auto part = std::move(waiting_.front());
  waiting_.pop_front();
  given_.store(waiting_.size(), std::memory_order_relaxed);
  return part;
}

void checksum_crew::wake_another() {
  {
    const std::lock_guard hold(lock_);
    if (called_ == asleep_) return;
    ++called_;
  }
  changed_.notify_one();
}

std::shared_ptr<value_part> checksum_crew::look_for_one() {
  looking_.fetch_add(1, std::memory_order_relaxed);
  std::shared_ptr<value_part> part;
  const std::uint64_t until_ns = monotonic_ns() + kLooksNs;
  for (unsigned pauses = 1; part == nullptr; ++pauses) {
    if (given_.load(std::memory_order_relaxed) != 0) part = take();
    else if (pauses % kPausesBetweenClocks == 0 && monotonic_ns() >= until_ns) break;
    else arch::relax();
  }
  looking_.fetch_sub(1, std::memory_order_relaxed);
  return part;
}

void checksum_crew::work() {
  for (;;) {
    if (const auto part = look_for_one(); part != nullptr) {
      if (looking_.load(std::memory_order_relaxed) == 0) wake_another();
      sum(*part);
      continue;
    }
    std::unique_lock hold(lock_);
    ++asleep_;
    // What came since the last look is not slept over.
    changed_.wait(hold, [&] { return closing_ || called_ != 0 || !waiting_.empty(); });
    --asleep_;
    if (called_ != 0) --called_;
    if (closing_ && waiting_.empty()) return;
  }
}

}  // namespace pl::store_client
