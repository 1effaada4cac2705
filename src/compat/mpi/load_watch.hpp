// SPDX-License-Identifier: Apache-2.0
// Detects within a nanosecond whether the process has loaded libcuda, because host-only programs check at every MPI
// call.
#pragma once

#include <link.h>

#include <atomic>

#include "cuda/driver_table.hpp"

namespace pl::mpi {

namespace detail {
// The last shared object in the dynamic linker's list when libcuda was last searched for; we keep it loaded, so that it
// may be read. A library that is loaded later comes after it. Null: nothing is known yet.
extern std::atomic<const link_map*> g_last_object;
extern std::atomic<const cu::driver_table*> g_driver;  // null: libcuda was not found yet
bool detect_driver() noexcept;
}  // namespace detail

// True from the first call after anybody has loaded libcuda; it is never loaded here. Thread-safe.
inline bool driver_is_there() noexcept {
  if (detail::g_driver.load(std::memory_order_acquire) != nullptr) return true;
  const link_map* const last = detail::g_last_object.load(std::memory_order_acquire);
  if (last != nullptr && __atomic_load_n(&last->l_next, __ATOMIC_RELAXED) == nullptr) [[likely]]
    return false;
  return detail::detect_driver();
}

}  // namespace pl::mpi
