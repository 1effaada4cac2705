// SPDX-License-Identifier: Apache-2.0
// <peerlane/device.cuh> for the kernels of this tree: what it asks of the GPU, on the simulated one. A simulated warp has
// one thread.
#pragma once

#include "cuda/kernel_device.cuh"

#if !defined(__CUDACC__)
#define PEERLANE_DEVICE_FN inline

namespace peerlane::device::port {

namespace dev = ::pl::dev;

PEERLANE_DEVICE_FN unsigned load32(unsigned long long address) { return dev::load_relaxed<std::uint32_t>(address); }
PEERLANE_DEVICE_FN unsigned long long load64(unsigned long long address) {
  return dev::load_relaxed<std::uint64_t>(address);
}
PEERLANE_DEVICE_FN void store32(unsigned long long address, unsigned value) {
  dev::store_relaxed<std::uint32_t>(address, value);
}
PEERLANE_DEVICE_FN void store128(unsigned long long address, unsigned a, unsigned b, unsigned c, unsigned d) {
  dev::store_vec16(std::uint64_t{address}, {a | std::uint64_t{b} << 32, c | std::uint64_t{d} << 32});
}
PEERLANE_DEVICE_FN unsigned long long add64(unsigned long long address, unsigned long long value) {
  return dev::atomic_add<std::uint64_t>(std::uint64_t{address}, value);
}
PEERLANE_DEVICE_FN void store64(unsigned long long address, unsigned long long value) {
  dev::store_relaxed<std::uint64_t>(address, value);
}
PEERLANE_DEVICE_FN unsigned load32_acquire(unsigned long long address) { return dev::load_acquire<std::uint32_t>(address); }
PEERLANE_DEVICE_FN unsigned long long load64_acquire(unsigned long long address) {
  return dev::load_acquire<std::uint64_t>(address);
}
// Stores into memory of the device itself are never held back, those elsewhere until a system fence.
PEERLANE_DEVICE_FN void store32_release(unsigned long long address, unsigned value, bool is_system) {
  if (is_system) dev::fence_system();
  dev::store_release<std::uint32_t>(address, value);
}
PEERLANE_DEVICE_FN unsigned cas32(unsigned long long address, unsigned expected, unsigned value) {
  auto* const word = dev::reach(reinterpret_cast<std::uint32_t*>(address), true);
  __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
PEERLANE_DEVICE_FN void fence_system() { dev::fence_system(); }
PEERLANE_DEVICE_FN void pause() {}  // loads let others run
PEERLANE_DEVICE_FN unsigned long long time_ns() { return dev::global_timer_ns(); }
PEERLANE_DEVICE_FN void sync_block() { dev::sync_threads(); }
PEERLANE_DEVICE_FN bool is_first_of_block() { return dev::thread_x() == 0; }
PEERLANE_DEVICE_FN unsigned place_in_warp() { return 0; }
PEERLANE_DEVICE_FN unsigned warp_threads() { return 1; }
PEERLANE_DEVICE_FN void sync_warp() {}
PEERLANE_DEVICE_FN long long from_first(long long value) { return value; }
PEERLANE_DEVICE_FN unsigned long long from_next(unsigned long long value) { return value; }
PEERLANE_DEVICE_FN bool is_any(bool value) { return value; }

}  // namespace peerlane::device::port
#endif

#include <peerlane/device.cuh>
