// SPDX-License-Identifier: Apache-2.0
// How far a value's bytes have come into memory: said by who copies them there, heard by who writes them to disk meanwhile.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace pl::store {

// Told of, and waited for, in steps of this many bytes from the value's start: a small part of what a disk writes in a
// millisecond, and many times what waking a thread costs.
constexpr std::uint64_t kFillStepBytes = std::uint64_t{1} << 20;

// Any thread; one copies, one waits. Who copies reaches the value's end in any case, even if the write failed.
class filling {
 public:
  // The first `bytes` are there.
  void reach(std::uint64_t bytes) {
    {
      std::lock_guard lock(mutex_);
      reached_ = bytes;
    }
    more_.notify_one();
  }
  std::uint64_t reached() const {
    std::lock_guard lock(mutex_);
    return reached_;
  }
  void wait_for(std::uint64_t bytes) {
    std::unique_lock lock(mutex_);
    more_.wait(lock, [&] { return reached_ >= bytes; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable more_;
  std::uint64_t reached_ = 0;
};

}  // namespace pl::store
