// SPDX-License-Identifier: Apache-2.0
#include "store/client/checksum_pool.hpp"

#include <algorithm>
#include <cerrno>

#include "arch/crc32c.hpp"
#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/cpu_share.hpp"
#include "base/raise_to.hpp"
#include "os/blocked_signals.hpp"

namespace pl::store_client {
namespace {

constexpr unsigned kMaxThreads = 8;
constexpr std::uint64_t kLongestCopy = 16 << 20, kShortestCopy = 256 << 10;
constexpr std::uint64_t kPollNs = 500'000;     // the longest copy takes 300 us
constexpr unsigned kPausesBetweenClocks = 32;  // about 1.5 us

}  // namespace

void checksum_pool::end() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard hold(lock_);
    closing_ = true;
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (auto& one : threads) one.join();
  count_.store(0, std::memory_order_relaxed);
  // Sums what was given too late for the threads: see give().
  searching_.fetch_add(0, std::memory_order_acq_rel);
  while (help()) {}
}

// Starts the threads; one is enough for success. Precondition: the lock is held.
status checksum_pool::start() {
  if (closing_) return failure{ESHUTDOWN, "the threads that compute checksums have ended"};
  if (!threads_.empty()) return {};
  const unsigned count = most_threads_ != 0 ? most_threads_ : half_of_cpus(1, kMaxThreads);
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
  if (thread_count() != 0) return {};
  const std::lock_guard hold(lock_);
  return start();
}

void checksum_pool::want(std::size_t parts) {
  raise_to(wanted_, static_cast<unsigned>(std::min(parts, thread_count())), std::memory_order_relaxed);
}

void checksum_pool::call(std::size_t parts) {
  if (!prepare()) return;
  want(parts);
  if (is_another_wanted()) wake_another();
}

void checksum_pool::queue(part_ref part) {
  if (waiting_.push(part)) return;
  const std::lock_guard hold(lock_);
  left_over_.push_back(std::move(part));
  left_over_count_.store(left_over_.size(), std::memory_order_relaxed);
}

void checksum_pool::give(std::span<const std::shared_ptr<value_part>> parts) {
  if (!prepare()) {
    for (const auto& one : parts) sum(*one);
    return;
  }
  for (const auto& one : parts) queue(one);
  want(std::max(parts.size(), waiting_.size()));
  // A searching thread takes the part, or finds it before it goes to sleep: if it leaves the search after this change
  // of `searching_`, it sees the parts; if before, it is not counted here.
  const bool is_seen = searching_.fetch_add(0, std::memory_order_acq_rel) != 0;
  if (thread_count() == 0)  // the threads have ended meanwhile
    while (help()) {}
  if (is_seen || called_.load(std::memory_order_relaxed) != 0) return;
  wake_another();
}

void checksum_pool::give(std::function<void()> task) {
  const auto part = std::make_shared<value_part>();
  part->task = std::move(task);
  give({&part, 1});
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
                   : arch::crc32c_copy(part.destination, part.source, part.bytes, 0, part.non_temporal);
  part.summed.store(true, std::memory_order_release);
}

// Returns null if no part waits.
std::shared_ptr<value_part> checksum_pool::take() {
  if (auto part = waiting_.pop()) return *std::move(part);
  if (left_over_count_.load(std::memory_order_relaxed) == 0) return {};
  const std::lock_guard hold(lock_);
  if (left_over_.empty()) return {};
  auto part = std::move(left_over_.front());
  left_over_.pop_front();
  left_over_count_.store(left_over_.size(), std::memory_order_relaxed);
  return part;
}

bool checksum_pool::has_parts() const noexcept {
  return !waiting_.is_empty() || left_over_count_.load(std::memory_order_relaxed) != 0;
}

bool checksum_pool::is_another_wanted() const noexcept {
  const unsigned wanted = wanted_.load(std::memory_order_relaxed);
  const std::size_t up = thread_count() - asleep_.load(std::memory_order_relaxed) + called_.load(std::memory_order_relaxed);
  return wanted != 0 && up < wanted;
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
  searching_.fetch_add(1, std::memory_order_acq_rel);
  std::shared_ptr<value_part> part;
  const std::uint64_t until_ns = monotonic_ns() + kPollNs;
  for (unsigned pauses = 1; part == nullptr; ++pauses) {
    if (has_parts()) part = take();
    if (part != nullptr) break;
    if (pauses % kPausesBetweenClocks == 0 && monotonic_ns() >= until_ns) break;
    arch::relax();
  }
  searching_.fetch_sub(1, std::memory_order_acq_rel);
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
    // Checks again under the lock, so that parts given since the last check are not missed.
    changed_.wait(hold, [&] { return closing_ || called_ != 0 || has_parts(); });
    --asleep_;
    if (called_ != 0) --called_;
    if (closing_ && !has_parts()) return;
  }
}

}  // namespace pl::store_client
