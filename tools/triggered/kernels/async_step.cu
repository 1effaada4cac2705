// SPDX-License-Identifier: Apache-2.0
// The application's part of an exchange: uses every word that came, makes every word that goes.
#include "cuda/kernel_device.cuh"

using namespace pl::dev;

// out[i] = in[i] + 1 for `words` words of 8 bytes; then at least `busy_ns` from its start.
PL_KERNEL void async_step(std::uint64_t out, std::uint64_t source, std::uint64_t words, std::uint64_t busy_ns) {
  const std::uint64_t begin_ns = busy_ns != 0 ? global_timer_ns() : 0;
  const std::uint64_t step = std::uint64_t{grid_dim_x()} * block_dim_x();
  for (std::uint64_t i = std::uint64_t{block_x()} * block_dim_x() + thread_x(); i < words; i += step)
    store_relaxed<std::uint64_t>(out + 8 * i, load_relaxed<std::uint64_t>(source + 8 * i) + 1);
  while (busy_ns != 0 && global_timer_ns() - begin_ns < busy_ns) let_others_run();
}

PL_EXPORT_KERNEL(async_step)
