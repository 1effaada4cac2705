// SPDX-License-Identifier: Apache-2.0
// What stencil and multigrid do on a block of n x n doubles, with what the neighbours sent beside it.
//
// `ghosts`: the neighbours' edges, `edges`: this block's for them; both are four rows, `pitch` bytes from one to the next,
// in the order up, down, left, right. Edges are stored twice, in the field and there, so that each halo is one piece of
// memory.
//
// Exactly the same on every machine: sums are written down in their order, and only powers of two are multiplied with, so
// nothing changes where a compiler makes one instruction of a product and a sum.
#include <cstring>

#include "cuda/kernel_device.cuh"

using namespace pl::dev;

namespace {

PL_DEVICE double load_double(std::uint64_t address) {
  const std::uint64_t bits = load_data64(address);
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Points of one block and what lies around them.
struct block_view {
  std::uint64_t field, ghosts, pitch;
  unsigned n;
  unsigned walls;  // sides, as bits, on which a wall lies half a width away: beyond it is the negative of the point

  PL_DEVICE double at(unsigned x, unsigned y) const { return load_double(field + 8ull * (y * n + x)); }
  PL_DEVICE double ghost(unsigned side, unsigned i, unsigned x, unsigned y) const {
    return (walls >> side & 1) != 0 ? -at(x, y) : load_double(ghosts + side * pitch + 8ull * i);
  }
  PL_DEVICE double up(unsigned x, unsigned y) const { return y != 0 ? at(x, y - 1) : ghost(0, x, x, y); }
  PL_DEVICE double down(unsigned x, unsigned y) const { return y != n - 1 ? at(x, y + 1) : ghost(1, x, x, y); }
  PL_DEVICE double left(unsigned x, unsigned y) const { return x != 0 ? at(x - 1, y) : ghost(2, y, x, y); }
  PL_DEVICE double right(unsigned x, unsigned y) const { return x != n - 1 ? at(x + 1, y) : ghost(3, y, x, y); }
  PL_DEVICE double sum_of_neighbours(unsigned x, unsigned y) const {
    return (up(x, y) + down(x, y)) + (left(x, y) + right(x, y));
  }
  PL_DEVICE double residual(std::uint64_t right_side, unsigned x, unsigned y) const {
    return (load_double(right_side + 8ull * (y * n + x)) + sum_of_neighbours(x, y)) - 4 * at(x, y);
  }
};

PL_DEVICE void store_point(std::uint64_t field, std::uint64_t edges, std::uint64_t pitch, unsigned n, unsigned x, unsigned y,
                           double value) {
  store_relaxed<double>(field + 8ull * (y * n + x), value);
  if (y == 0) store_relaxed<double>(edges + 8ull * x, value);
  if (y == n - 1) store_relaxed<double>(edges + pitch + 8ull * x, value);
  if (x == 0) store_relaxed<double>(edges + 2 * pitch + 8ull * y, value);
  if (x == n - 1) store_relaxed<double>(edges + 3 * pitch + 8ull * y, value);
}

PL_DEVICE unsigned first_point() { return block_x() * block_dim_x() + thread_x(); }
PL_DEVICE unsigned all_threads() { return grid_dim_x() * block_dim_x(); }

}  // namespace

// A step of Jacobi's iteration: a quarter of the four neighbours' sum.
PL_KERNEL void stencil_step(std::uint64_t next, std::uint64_t now, std::uint64_t ghosts, std::uint64_t edges,
                            std::uint64_t pitch, unsigned n) {
  const block_view view{now, ghosts, pitch, n, 0};
  for (unsigned i = first_point(); i < n * n; i += all_threads())
    store_point(next, edges, pitch, n, i % n, i / n, 0.25 * view.sum_of_neighbours(i % n, i / n));
}

// A step of Jacobi's iteration for 4 u - sum = b, damped by a half; from u = 0 nothing but b is read.
PL_KERNEL void multigrid_smooth(std::uint64_t next, std::uint64_t now, std::uint64_t right_side, std::uint64_t ghosts,
                                std::uint64_t edges, std::uint64_t pitch, unsigned n, unsigned walls,
                                unsigned is_from_zero) {
  const block_view view{now, ghosts, pitch, n, walls};
  for (unsigned i = first_point(); i < n * n; i += all_threads()) {
    const unsigned x = i % n, y = i / n;
    const double b = load_double(right_side + 8ull * i);
    const double value = is_from_zero != 0 ? 0.125 * b : 0.5 * view.at(x, y) + 0.125 * (view.sum_of_neighbours(x, y) + b);
    store_point(next, edges, pitch, n, x, y, value);
  }
}

// The right side of the next coarser level, of (n / 2)^2: with the square of the width, four times the mean of the
// residuals.
PL_KERNEL void multigrid_restrict(std::uint64_t coarse, std::uint64_t field, std::uint64_t right_side, std::uint64_t ghosts,
                                  std::uint64_t pitch, unsigned n, unsigned walls) {
  const block_view view{field, ghosts, pitch, n, walls};
  const unsigned half = n / 2;
  for (unsigned i = first_point(); i < half * half; i += all_threads()) {
    const unsigned x = i % half * 2, y = i / half * 2;
    const double upper = view.residual(right_side, x, y) + view.residual(right_side, x + 1, y);
    const double lower = view.residual(right_side, x, y + 1) + view.residual(right_side, x + 1, y + 1);
    store_relaxed<double>(coarse + 8ull * i, upper + lower);
  }
}

// Adds the coarser level's result to each of its four points, interpolated with the two nearest neighbours.
PL_KERNEL void multigrid_correct(std::uint64_t field, std::uint64_t coarse, std::uint64_t ghosts, std::uint64_t edges,
                                 std::uint64_t pitch, unsigned n, unsigned walls) {
  const block_view view{coarse, ghosts, pitch, n / 2, walls};
  for (unsigned i = first_point(); i < n * n; i += all_threads()) {
    const unsigned x = i % n, y = i / n;
    const double vertical = y % 2 == 0 ? view.up(x / 2, y / 2) : view.down(x / 2, y / 2);
    const double horizontal = x % 2 == 0 ? view.left(x / 2, y / 2) : view.right(x / 2, y / 2);
    const double between = 0.5 * view.at(x / 2, y / 2) + 0.25 * (vertical + horizontal);
    store_point(field, edges, pitch, n, x, y, load_double(field + 8ull * i) + between);
  }
}

PL_EXPORT_KERNEL(stencil_step)
PL_EXPORT_KERNEL(multigrid_smooth)
PL_EXPORT_KERNEL(multigrid_restrict)
PL_EXPORT_KERNEL(multigrid_correct)
