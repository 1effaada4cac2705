// SPDX-License-Identifier: Apache-2.0
// One descriptor for poll, epoll and event loops behind which several things may wake: device descriptors, a signal of any
// thread, and a clock, for what nothing signals. It may be nested in an epoll set, duplicated, and made non-blocking.
//
// It becomes readable too often rather than too rarely: who wakes clears it, looks, and sleeps again.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.hpp"

namespace pl::copy {

class wake_descriptor {
 public:
  // EMFILE, ENFILE, ENOMEM: the operating system has none.
  static result<std::shared_ptr<wake_descriptor>> open();
  ~wake_descriptor();
  wake_descriptor(const wake_descriptor&) = delete;
  wake_descriptor& operator=(const wake_descriptor&) = delete;

  int get() const noexcept { return set_; }
  // Readable also whenever `fd` is.
  status watch(int fd);
  void unwatch(int fd) noexcept;
  // Readable also each `period_ns`.
  void tick(std::uint64_t period_ns) noexcept;
  // Readable until it is cleared. Any thread.
  void signal() noexcept;
  // Of signals and ticks; device descriptors are their owners'.
  void clear() noexcept;

 private:
  wake_descriptor() = default;

  int set_ = -1, clock_ = -1, signal_ = -1;
};

}  // namespace pl::copy
