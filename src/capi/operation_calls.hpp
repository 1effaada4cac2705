// SPDX-License-Identifier: Apache-2.0
// What the owners of operations share: the function called at an operation's end, and waits for operations of several
// owners.
#pragma once

#include <peerlane/operation.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/clock.hpp"

namespace pl {

// The function of peerlane_op_then(): called once, by whoever sees the end first, on any thread.
class end_function {
 public:
  // `owner`: the handle of the operation's owner.
  end_function(peerlane_op_function_t function, void* context, const void* owner) noexcept
      : function_(function), context_(context), owner_(owner) {}
  // Returns once the function has returned, even if another thread is calling it.
  void call(const peerlane_op_info& info) noexcept {
    if (is_taken_.exchange(true)) return has_returned_.wait(false);
    outer_ = std::exchange(innermost(), this);
    function_(context_, &info);
    innermost() = outer_;
    has_returned_.store(true);
    has_returned_.notify_all();
  }
  bool is_running() const noexcept { return is_taken_.load() && !has_returned_.load(); }
  // True: this thread is in a function of an operation of `owner`. Closing the owner would wait for that function, or free
  // what its caller uses.
  static bool is_in_one_of(const void* owner) noexcept {
    for (const auto* each = innermost(); each != nullptr; each = each->outer_)
      if (each->owner_ == owner) return true;
    return false;
  }

 private:
  static const end_function*& innermost() noexcept {
    static thread_local const end_function* running = nullptr;
    return running;
  }

  peerlane_op_function_t function_;
  void* context_;
  const void* owner_;
  const end_function* outer_ = nullptr;  // what the thread of this function was in before
  std::atomic<bool> is_taken_{false}, has_returned_{false};
};
using end_function_ptr = std::shared_ptr<end_function>;

// Whether a thread is in the operation's function, if it has one. A test does not wait for it: to the owner, the
// operation has not ended yet.
inline bool is_in_function(const end_function_ptr& function) noexcept {
  return function != nullptr && function->is_running();
}

// The rest of a limit that several waits share; negative: no limit.
class time_limit {
 public:
  explicit time_limit(std::int64_t timeout_ms) noexcept
      : is_endless_(timeout_ms < 0 || timeout_ms > kLongest),
        end_ns_(is_endless_ ? 0 : monotonic_ns() + static_cast<std::uint64_t>(timeout_ms) * 1'000'000u) {}
  bool has_passed() const noexcept { return !is_endless_ && monotonic_ns() >= end_ns_; }
  // Rounded up, so that a wait for it ends after the limit.
  std::chrono::milliseconds left() const noexcept {
    if (is_endless_) return std::chrono::milliseconds(-1);
    const auto now = monotonic_ns();
    return std::chrono::milliseconds(now >= end_ns_ ? 0
                                                    : static_cast<std::int64_t>((end_ns_ - now + 999'999u) / 1'000'000u));
  }

 private:
  static constexpr std::int64_t kLongest = std::int64_t{1} << 40;  // fits into nanoseconds
  bool is_endless_;
  std::uint64_t end_ns_;
};

// The pause between two polls of something that ends by itself: first lets another thread run, later sleeps.
class poll_pause {
 public:
  void pause() noexcept;

 private:
  unsigned polls_ = 0;
};

inline void write_info(const peerlane_op_info& info, peerlane_op_info* out) noexcept {
  if (out != nullptr) *out = info;
}

// Whether all that are not empty belong to this table and owner.
bool have_one_owner(const peerlane_op_t* ops, std::size_t count, const peerlane_op_calls* calls, const void* owner) noexcept;

// wait_any and wait_all for operations of several tables and owners: tests them in turns. The thread's last error in
// this library is the message of the operation that failed.
int wait_any_in_turns(peerlane_op_t* ops, std::size_t count, std::int64_t timeout_ms, std::size_t* index,
                      peerlane_op_info* info);
int wait_all_in_turns(peerlane_op_t* ops, std::size_t count, std::int64_t timeout_ms, peerlane_op_info* infos);

}  // namespace pl
