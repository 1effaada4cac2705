// SPDX-License-Identifier: Apache-2.0
// Whether the store can be written to, and its counters.
#pragma once

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>

#include "base/log.hpp"
#include "base/shortage.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

class health {
 public:
  // Keeps the first reason. Nobody can know what a failed write or sync left behind, so nothing is ever retried.
  void fail(const std::string& cause) {
    std::lock_guard lock(mutex_);
    if (!reason_.empty()) return;
    reason_ = cause;
    read_only.store(true, std::memory_order_release);
    PL_LOG(error, "store: read-only until it is opened again: %s", cause.c_str());
  }
  std::string reason() const {
    std::lock_guard lock(mutex_);
    return reason_;
  }
  // EROFS if writes are refused.
  status writable() const {
    if (!read_only.load(std::memory_order_acquire)) return {};
    const std::string cause = reason();
    if (cause.empty())
      return failure{EROFS, "store: it is served read-only: start it without --read-only, with room on its disk"};
    return failure{EROFS, "store: read-only since an error: " + cause};
  }
  // Notes a failed write. Everything makes the store read-only except a lack of room, or of descriptors or memory of
  // this process.
  void note(const failure& cause) {
    if (is_shortage(cause.code)) return;
    if (cause.code == ENOSPC) full.store(true, std::memory_order_relaxed);
    else fail(cause.message);
  }

  std::atomic<bool> read_only{false};
  std::atomic<bool> full{false};
  using counter = std::atomic<std::uint64_t>;
  counter puts{0}, gets{0}, erases{0}, failed{0}, put_bytes{0}, get_bytes{0}, hits{0}, misses{0}, evictions{0},
      evicted_bytes{0}, spilled_bytes{0}, commits{0}, committed{0}, syncs{0}, early_writes{0}, checksum_errors{0},
      repeated{0};

 private:
  mutable std::mutex mutex_;
  std::string reason_;
};

inline void count(health::counter& total, std::uint64_t amount = 1) noexcept {
  total.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace pl::store
