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
  bool has_come = false;
  clock::time_point next_check{};

  // Most calls are too short to ask.
  void begin() { next_check = clock::now() + kPeriod; }
  bool is_used() const noexcept { return asks != nullptr; }
  bool is_due() const { return asks != nullptr && (has_come || clock::now() >= next_check); }
  bool comes(clock::time_point now) {
    if (asks == nullptr || has_come || now < next_check) return has_come;
    next_check = now + kPeriod;
    has_come = asks(context) != 0;
    return has_come;
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
