// SPDX-License-Identifier: Apache-2.0
#include "checksum_crew.hpp"

#include <algorithm>

#include "crc32c.hpp"

namespace pl::store_client {
namespace {

constexpr unsigned kMostThreads = 8;
constexpr std::uint64_t kLongestPart = 4 << 20, kShortestPart = 256 << 10;

}  // namespace

checksum_crew::~checksum_crew() {
  {
    const std::lock_guard hold(lock_);
    closing_ = true;
  }
  changed_.notify_all();
  for (auto& one : threads_) one.join();
}

void checksum_crew::give(std::shared_ptr<value_part> part) {
  {
    const std::lock_guard hold(lock_);
    if (threads_.empty()) {
      const unsigned count = std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostThreads);
      for (unsigned i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
    }
    waiting_.push_back(std::move(part));
  }
  changed_.notify_one();
}

bool checksum_crew::help() {
  std::shared_ptr<value_part> part;
  {
    const std::lock_guard hold(lock_);
    if (waiting_.empty()) return false;
    part = std::move(waiting_.front());
    waiting_.pop_front();
  }
  sum(*part);
  return true;
}

std::uint64_t checksum_crew::part_bytes(std::uint64_t left) noexcept {
  if (left <= kShortestPart) return left;
  return std::clamp(left / 4 / kShortestPart * kShortestPart, kShortestPart, kLongestPart);
}

void checksum_crew::sum(value_part& part) {
  part.crc = arch::crc32c(part.at, part.bytes);
  part.summed.store(true, std::memory_order_release);
}

void checksum_crew::work() {
  std::unique_lock hold(lock_);
  for (;;) {
    changed_.wait(hold, [&] { return closing_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const auto part = std::move(waiting_.front());
    waiting_.pop_front();
    hold.unlock();
    sum(*part);
    hold.lock();
  }
}

}  // namespace pl::store_client
