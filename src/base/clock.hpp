// SPDX-License-Identifier: Apache-2.0
// Time: monotonic nanoseconds for results, raw ticks (TSC / CNTVCT) for the shortest intervals.
#pragma once

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace pl {

// CLOCK_MONOTONIC in nanoseconds. vDSO, no syscall; about 20 ns.
inline std::uint64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

// Free-running counter; constant rate on every CPU we support (invariant TSC, ARM generic timer).
// Not ordered against neighbouring loads and stores: ticks_ordered() is.
inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return monotonic_ns();
#endif
}

// As ticks(), after all earlier instructions have executed (loads done, stores retired but not necessarily visible).
inline std::uint64_t ticks_ordered() noexcept {
#if defined(__x86_64__)
  unsigned cpu = 0;
  const std::uint64_t value = __rdtscp(&cpu);
  _mm_lfence();
  return value;
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
  return ticks();
#else
  return ticks();
#endif
}

// Ticks per millisecond, measured once against CLOCK_MONOTONIC (takes about 2 ms on first use). Thread-safe.
std::uint64_t ticks_per_ms() noexcept;

inline double ticks_to_ns(std::uint64_t tick_count) noexcept {
  return static_cast<double>(tick_count) * 1e6 / static_cast<double>(ticks_per_ms());
}

}  // namespace pl
