// SPDX-License-Identifier: Apache-2.0
// Lets a thread end its own waiting calls early, for Ctrl-C in Python.
#pragma once

#include "store/client/operation.hpp"

namespace pl::store_client {

// Of the calling thread. Its waits ask `asks` every 50 ms, without locks, until it has returned another value than 0; from
// then on each wait ends as if its deadline were reached, with EINTR.
struct interruption {
  static constexpr auto kPeriod = std::chrono::milliseconds(50);
  int (*asks)(void* context) = nullptr;
  void* context = nullptr;
  // kCome: it has come. One field, because thread-local storage is scarce.
  clock::time_point next_check{};
  static constexpr auto kCome = clock::time_point::min();

  // Most calls are too short to ask.
  void begin() {
    if (!has_come()) next_check = clock::now() + kPeriod;
  }
  bool is_used() const noexcept { return asks != nullptr; }
  bool has_come() const noexcept { return next_check == kCome; }
  bool is_due() const { return asks != nullptr && clock::now() >= next_check; }
  bool comes(clock::time_point now) {
    if (asks == nullptr || has_come() || now < next_check) return has_come();
    next_check = asks(context) != 0 ? kCome : now + kPeriod;
    return has_come();
  }
};
interruption& own_interruption() noexcept;

// Waits that only look, and continue later, are not interrupted.
class no_interruption {
 public:
  no_interruption() : before_(own_interruption()) { own_interruption() = {}; }
  ~no_interruption() { own_interruption() = before_; }
  no_interruption(const no_interruption&) = delete;
  no_interruption& operator=(const no_interruption&) = delete;

 private:
  const interruption before_;
};

inline constexpr const char* kClosed = "the store was closed";
inline constexpr const char* kInterrupted = "the call was interrupted; whether it was done is not known";

}  // namespace pl::store_client
