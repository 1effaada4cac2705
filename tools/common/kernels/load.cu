// SPDX-License-Identifier: Apache-2.0
// Other work on the GPU, for `peerlane copy --beside`: how much slower is it while a copy kernel is resident?
#include "cuda/kernel_device.cuh"

using namespace pl::dev;

// Bound by arithmetic: eight independent chains of multiply-adds, so that latency is hidden even at low occupancy.
PL_KERNEL void load_compute(std::uint64_t out, std::uint32_t rounds) {
  const auto seed = static_cast<float>(block_x() * block_dim_x() + thread_x());
  float chain[8];
  for (int i = 0; i < 8; ++i) chain[i] = seed + static_cast<float>(i);
  for (std::uint32_t round = 0; round < rounds; ++round)
    for (int i = 0; i < 8; ++i) chain[i] = chain[i] * 0.999F + 0.5F;
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += chain[i];
  // Never true (the chains converge to 500 each), but the compiler does not know.
  if (sum < 0) store_relaxed<std::uint32_t>(out, 1u);
}

// Bound by memory: `count` lines of 16 bytes, `repeats` times, four loads in flight for each thread.
PL_KERNEL void load_memory(std::uint64_t dst, std::uint64_t src, std::uint64_t count, std::uint32_t repeats) {
  const std::uint64_t step = std::uint64_t{grid_dim_x()} * block_dim_x();
  for (std::uint32_t repeat = 0; repeat < repeats; ++repeat) {
    std::uint64_t index = std::uint64_t{block_x()} * block_dim_x() + thread_x();
    for (; index + 3 * step < count; index += 4 * step) {
      const vec16 a = load_vec16(src + 16 * index);
      const vec16 b = load_vec16(src + 16 * (index + step));
      const vec16 c = load_vec16(src + 16 * (index + 2 * step));
      const vec16 d = load_vec16(src + 16 * (index + 3 * step));
      store_vec16(dst + 16 * index, a);
      store_vec16(dst + 16 * (index + step), b);
      store_vec16(dst + 16 * (index + 2 * step), c);
      store_vec16(dst + 16 * (index + 3 * step), d);
    }
    for (; index < count; index += step) store_vec16(dst + 16 * index, load_vec16(src + 16 * index));
  }
}

PL_EXPORT_KERNEL(load_compute)
PL_EXPORT_KERNEL(load_memory)
