// SPDX-License-Identifier: Apache-2.0
#include "store/client/checksum_pool.hpp"

#include <algorithm>

#include "arch/crc32c.hpp"
#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "os/blocked_signals.hpp"

namespace pl::store_client {
namespace {

constexpr unsigned kMaxThreads = 8;
constexpr std::uint64_t kLongestCopy = 16 << 20, kShortestCopy = 256 << 10;
constexpr std::uint64_t kPollNs = 500'000;     // the longest copy takes 300 us
constexpr unsigned kPausesBetweenClocks = 32;  // about 1.5 us

// Others hold it for some instructions; a sleep costs more than they take.
std::unique_lock<std::mutex> soon_locked(std::mutex& lock) {
  constexpr int kTries = 200;
  std::unique_lock hold(lock, std::try_to_lock);
  for (int i = 0; !hold && i < kTries; ++i) {
    arch::relax();
    (void)hold.try_lock();
  }
  if (!hold) hold.lock();
  return hold;
}

}  // namespace

checksum_pool::~checksum_pool() {
  {
    const std::lock_guard hold(lock_);
    closing_ = true;
  }
  changed_.notify_all();
  for (auto& one : threads_) one.join();
}

// Under the lock. One is enough.
status checksum_pool::start() {
  if (!threads_.empty()) return {};
  const unsigned count =
      most_threads_ != 0 ? most_threads_ : std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMaxThreads);
  status refused;
  while (refused && threads_.size() < count) {
    auto started = try_start_thread("computes checksums", [this] { work(); });
    if (started) threads_.push_back(*std::move(started));
    else refused = started.error();
  }
  count_ = threads_.size();
  return threads_.empty() ? refused : status();
}

status checksum_pool::prepare() {
  const std::lock_guard hold(lock_);
  return start();
}

// Under the lock.
void checksum_pool::want(std::size_t parts) {
  const auto count = static_cast<unsigned>(std::min(parts, threads_.size()));
  wanted_.store(std::max(wanted_.load(std::memory_order_relaxed), count), std::memory_order_relaxed);
}

void checksum_pool::call(std::size_t parts) {
  {
    const std::lock_guard hold(lock_);
    if (!start()) return;
    want(parts);
  }
  if (is_another_wanted()) wake_another();
}

void checksum_pool::give(std::span<const std::shared_ptr<value_part>> parts) {
  bool is_alone = false;
  {
    const auto hold = soon_locked(lock_);
    is_alone = !start();
    if (!is_alone) {
      waiting_.insert(waiting_.end(), parts.begin(), parts.end());
      given_.store(waiting_.size(), std::memory_order_relaxed);
      want(waiting_.size());
      // A searching thread takes it, or finds it before it goes to sleep.
      if (searching_.load(std::memory_order_relaxed) != 0 || called_ != 0) return;
    }
  }
  if (!is_alone) return wake_another();
  for (const auto& one : parts) sum(*one);
}

bool checksum_pool::help() {
  const auto part = take();
  if (part != nullptr) sum(*part);
  return part != nullptr;
}

std::uint64_t checksum_pool::copy_bytes(std::uint64_t left) noexcept {
  if (left <= kShortestCopy) return left;
  return std::clamp(left / 2 / kShortestCopy * kShortestCopy, kShortestCopy, kLongestCopy);
}

void checksum_pool::sum(value_part& part) {
  if (part.task) part.task();
  else
    part.crc = part.destination == nullptr
                   ? arch::crc32c(part.source, part.bytes)
                   : arch::crc32c_copy(part.destination, part.source, part.bytes, 0, part.past_cache);
  part.summed.store(true, std::memory_order_release);
}

// Null: none waits, or another thread is taking one. Threads that look all the time do not sleep for the lock: whoever gives
// the next parts would have to wake them.
std::shared_ptr<value_part> checksum_pool::take() {
  const std::unique_lock hold(lock_, std::try_to_lock);
  if (!hold || waiting_.empty()) return {};
  auto part = std::move(waiting_.front());
  waiting_.pop_front();
  given_.store(waiting_.size(), std::memory_order_relaxed);
  return part;
}

bool checksum_pool::is_another_wanted() {
  const unsigned wanted = wanted_.load(std::memory_order_relaxed);
  if (wanted == 0) return false;
  const std::lock_guard hold(lock_);
  return threads_.size() - asleep_ + called_ < wanted;
}

void checksum_pool::wake_another() {
  {
    const std::lock_guard hold(lock_);
    if (called_ == asleep_) return;
    ++called_;
  }
  changed_.notify_one();
}

std::shared_ptr<value_part> checksum_pool::find_part() {
  searching_.fetch_add(1, std::memory_order_relaxed);
  std::shared_ptr<value_part> part;
  const std::uint64_t until_ns = monotonic_ns() + kPollNs;
  for (unsigned pauses = 1; part == nullptr; ++pauses) {
    if (given_.load(std::memory_order_relaxed) != 0) part = take();
    if (part != nullptr) break;
    if (pauses % kPausesBetweenClocks == 0 && monotonic_ns() >= until_ns) break;
    arch::relax();
  }
  searching_.fetch_sub(1, std::memory_order_relaxed);
  return part;
}

void checksum_pool::work() {
  for (;;) {
    if (is_another_wanted()) wake_another();
    if (const auto part = find_part(); part != nullptr) {
      sum(*part);
      continue;
    }
    std::unique_lock hold(lock_);
    ++asleep_;
    wanted_.store(0, std::memory_order_relaxed);
    // Rechecks under the lock, so that parts given since the last poll are not missed.
    changed_.wait(hold, [&] { return closing_ || called_ != 0 || !waiting_.empty(); });
    --asleep_;
    if (called_ != 0) --called_;
    if (closing_ && waiting_.empty()) return;
  }
}

}  // namespace pl::store_client
