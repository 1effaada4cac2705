// SPDX-License-Identifier: Apache-2.0
// One descriptor for poll, epoll and event loops with several sources of wakeups: device descriptors, a signal from any
// thread, and a timer, for sources without a signal. It may be nested in an epoll set, duplicated, and made
// non-blocking.
//
// It becomes readable too often rather than too rarely: whoever wakes up clears it, checks, and sleeps again.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.hpp"

namespace pl::copy {

class wake_descriptor {
 public:
  // EMFILE, ENFILE, ENOMEM if the operating system has none.
  static result<std::shared_ptr<wake_descriptor>> open();
  ~wake_descriptor();
  wake_descriptor(const wake_descriptor&) = delete;
  wake_descriptor& operator=(const wake_descriptor&) = delete;

  int get() const noexcept { return set_; }
  // Makes it readable also whenever `fd` is.
  status watch(int fd);
  void unwatch(int fd) noexcept;
  // Makes it readable also once per `period_ns`.
  void tick(std::uint64_t period_ns) noexcept;
  // Makes it readable until it is cleared. Thread-safe.
  void signal() noexcept;
  // Clears signals and ticks; device descriptors are cleared by their owners.
  void clear() noexcept;

 private:
  wake_descriptor() = default;

  int set_ = -1, clock_ = -1, signal_ = -1;
};

}  // namespace pl::copy
