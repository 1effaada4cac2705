// SPDX-License-Identifier: Apache-2.0
// Waiting that lets other Python threads run and that Ctrl-C ends.
#pragma once

#include <nanobind/nanobind.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "gil.hpp"

namespace nb = nanobind;

namespace pl::py {

constexpr std::chrono::milliseconds kSignalPeriod{50};  // how long Ctrl-C may take to be seen

// Throws what a signal's handler raises, on the main thread. The GIL is not held.
inline void check_signals() {
  interpreter_end::before([] {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  });
}

// Until is_over(), which is called without the GIL and may throw. Most waits are over within the first millisecond, in which
// the thread only yields; after that a nap adds a sixteenth.
template <class IsOver>
void wait_until(IsOver&& is_over) {
  using clock = std::chrono::steady_clock;
  const gil_release waiting;  // also for the first look: it may wait for a function that needs the GIL
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

// `wait(slice)` waits for so long at most and says whether it is over; negative `limit`: without limit. False: out of time.
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
