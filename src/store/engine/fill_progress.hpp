// SPDX-License-Identifier: Apache-2.0
// How much of a value has arrived in memory: the copying thread reports it, and the thread that writes to disk waits
// for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace pl::store {

// Progress is reported and awaited in steps of this size from the value's start: a small part of what a disk writes in
// a millisecond, and far more than the cost of waking a thread.
constexpr std::uint64_t kFillStepBytes = std::uint64_t{1} << 20;

// Thread-safe; one thread copies, one waits.
class fill_progress {
 public:
  // Without a timeout: the copying thread always reaches the value's end, even if the write failed.
  fill_progress() = default;
  // With a timeout: the bytes come from another process, which may stop. The wait ends when nothing arrives for
  // `timeout`.
  explicit fill_progress(std::chrono::milliseconds timeout) : timeout_(timeout) {}
  bool has_timeout() const noexcept { return timeout_.has_value(); }
  // The first `bytes` have arrived.
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
  // No more bytes will come.
  void give_up() {
    {
      std::lock_guard lock(mutex_);
      given_up_ = true;
    }
    more_.notify_one();
  }
  // Returns false if the bytes will not come.
  bool wait_for(std::uint64_t bytes) {
    std::unique_lock lock(mutex_);
    while (reached_ < bytes && !given_up_) {
      const std::uint64_t before = reached_;
      if (!timeout_) more_.wait(lock);
      else if (more_.wait_for(lock, *timeout_) == std::cv_status::timeout && reached_ == before) given_up_ = true;
    }
    return reached_ >= bytes;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable more_;
  std::uint64_t reached_ = 0;
  bool given_up_ = false;
  const std::optional<std::chrono::milliseconds> timeout_;
};

}  // namespace pl::store
