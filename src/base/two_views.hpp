// SPDX-License-Identifier: Apache-2.0
// One word at two addresses: a CPU's mapping of GPU memory and the simulated device's own view of it. ThreadSanitizer orders
// accesses by address, so these calls declare that a store through one address happens before the load through the other.
#pragma once

#include <cstdint>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace pl {

// Called before the store and after the load. `device_address` is the word's, which both sides know.
inline void before_store_in_view([[maybe_unused]] std::uint64_t device_address) noexcept {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(reinterpret_cast<void*>(device_address));
#endif
}
inline void after_load_in_view([[maybe_unused]] std::uint64_t device_address) noexcept {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(reinterpret_cast<void*>(device_address));
#endif
}

}  // namespace pl
