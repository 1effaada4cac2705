// SPDX-License-Identifier: Apache-2.0
// Waits that let other Python threads run, and that Ctrl-C ends.
#pragma once

#include <nanobind/nanobind.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "gil.hpp"

namespace nb = nanobind;

namespace pl::py {

constexpr std::chrono::milliseconds kSignalPeriod{50};  // longest delay until Ctrl-C is noticed

// Runs pending signal handlers (on the main thread) and throws what they raise. Call it without the GIL.
inline void check_signals() {
  interpreter_end::before([] {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  });
}

// Waits until is_over() returns true; it is called without the GIL and may throw. Most waits end within the first
// millisecond, in which the thread only yields. After that, it sleeps for a sixteenth of the time that has passed,
// at most 1 ms.
template <class IsOver>
void wait_until(IsOver&& is_over) {
  using clock = std::chrono::steady_clock;
  const gil_release waiting;  // also for the first call of is_over(), which may wait for a function that needs the GIL
  const auto begin = clock::now();
  auto last_check = begin;
  while (!is_over()) {
    const auto now = clock::now();
    if (now - begin < std::chrono::milliseconds(1)) sched_yield();
    else std::this_thread::sleep_for(std::min<clock::duration>((now - begin) / 16, std::chrono::milliseconds(1)));
    if (now - last_check < kSignalPeriod) continue;
    check_signals();
    last_check = now;
  }
}

// Calls wait(slice), which waits at most that long and returns whether the wait is over, until it is over or `limit` has
// passed (negative: no limit). False: the limit has passed.
template <class Wait>
bool wait_in_slices(std::chrono::milliseconds limit, Wait&& wait) {
  const gil_release waiting;
  for (;;) {
    const bool is_last = limit >= limit.zero() && limit <= kSignalPeriod;
    if (wait(is_last ? limit : kSignalPeriod)) return true;
    if (is_last) return false;
    if (limit >= limit.zero()) limit -= kSignalPeriod;
    check_signals();
  }
}

}  // namespace pl::py
