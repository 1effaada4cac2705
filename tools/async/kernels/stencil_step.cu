// SPDX-License-Identifier: Apache-2.0
// One step of a 5-point Jacobi iteration on a block of n x n doubles, halos apart.
#include <cstring>

#include "kernel_device.cuh"

using namespace pl::dev;

namespace {

PL_DEVICE double load_double(std::uint64_t address) {
  const std::uint64_t bits = load_data64(address);
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

// next = a quarter of the four neighbours' sum. `ghosts`: the neighbours' edges, `edges`: this block's for them; both are
// four rows of n, in the order up, down, left, right. Both edges and columns of `next` are stored twice, so that each halo
// is one piece of memory. Exactly the same on every machine: no product is added to, so nothing can be contracted, and the
// order of the sums is written down.
PL_KERNEL void stencil_step(std::uint64_t next, std::uint64_t now, std::uint64_t ghosts, std::uint64_t edges, unsigned n) {
  const std::uint64_t row_bytes = 8ull * n;
  const unsigned step = grid_dim_x() * block_dim_x();
  for (unsigned i = block_x() * block_dim_x() + thread_x(); i < n * n; i += step) {
    const unsigned y = i / n, x = i % n;
    const std::uint64_t here = now + 8ull * i;
    const double up = load_double(y != 0 ? here - row_bytes : ghosts + 8ull * x);
    const double down = load_double(y != n - 1 ? here + row_bytes : ghosts + row_bytes + 8ull * x);
    const double left = load_double(x != 0 ? here - 8 : ghosts + 2 * row_bytes + 8ull * y);
    const double right = load_double(x != n - 1 ? here + 8 : ghosts + 3 * row_bytes + 8ull * y);
    const double value = 0.25 * ((up + down) + (left + right));
    store_relaxed<double>(next + 8ull * i, value);
    if (y == 0) store_relaxed<double>(edges + 8ull * x, value);
    if (y == n - 1) store_relaxed<double>(edges + row_bytes + 8ull * x, value);
    if (x == 0) store_relaxed<double>(edges + 2 * row_bytes + 8ull * y, value);
    if (x == n - 1) store_relaxed<double>(edges + 3 * row_bytes + 8ull * y, value);
  }
}

PL_EXPORT_KERNEL(stencil_step)
