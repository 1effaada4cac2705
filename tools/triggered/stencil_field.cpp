// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/stencil_field.hpp"

#include <algorithm>
#include <utility>

namespace pl::async {
namespace {

// The part of the domain that `steps` steps of a block depend on.
struct region {
  std::int64_t x0, x1, y0, y1;  // half open
  region(const block_place& place, std::int64_t steps)
      : x0(std::max<std::int64_t>(0, std::int64_t{place.x()} * place.n - steps)),
        x1(std::min<std::int64_t>(std::int64_t{place.gx} * place.n, (place.x() + 1ll) * place.n + steps)),
        y0(std::max<std::int64_t>(0, std::int64_t{place.y()} * place.n - steps)),
        y1(std::min<std::int64_t>(std::int64_t{place.gy} * place.n, (place.y() + 1ll) * place.n + steps)) {}
};

}  // namespace

double first_value(std::int64_t x, std::int64_t y) {
  auto bits =
      static_cast<std::uint64_t>(x + 1) * 0x9e3779b97f4a7c15u ^ static_cast<std::uint64_t>(y + 1) * 0xc2b2ae3d27d4eb4fu;
  bits = (bits ^ bits >> 29) * 0xbf58476d1ce4e5b9u;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::vector<double> first_block(const block_place& place) {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(place.n) * static_cast<std::size_t>(place.n));
  const std::int64_t x0 = std::int64_t{place.x()} * place.n, y0 = std::int64_t{place.y()} * place.n;
  for (std::int64_t y = y0; y < y0 + place.n; ++y)
    for (std::int64_t x = x0; x < x0 + place.n; ++x) out.push_back(first_value(x, y));
  return out;
}

std::vector<double> first_ghosts(const block_place& place) {
  std::vector<double> out;
  const std::int64_t x0 = std::int64_t{place.x()} * place.n, y0 = std::int64_t{place.y()} * place.n, n = place.n;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(first_value(x0 + i, y0 - 1));
  for (std::int64_t i = 0; i < n; ++i) out.push_back(first_value(x0 + i, y0 + n));
  for (std::int64_t i = 0; i < n; ++i) out.push_back(first_value(x0 - 1, y0 + i));
  for (std::int64_t i = 0; i < n; ++i) out.push_back(first_value(x0 + n, y0 + i));
  return out;
}

std::uint64_t reference_work(const block_place& place, int steps) {
  std::uint64_t points = 0;
  for (int step = 1; step <= steps; ++step) {
    const region done(place, steps - step);
    points += static_cast<std::uint64_t>((done.x1 - done.x0) * (done.y1 - done.y0));
  }
  return points;
}

std::vector<double> block_after(const block_place& place, int steps) {
  // One point more on each side: the domain's surroundings, or points that are not needed any more.
  const region all(place, steps);
  const std::int64_t x0 = all.x0 - 1, y0 = all.y0 - 1, width = all.x1 - x0 + 1, height = all.y1 - y0 + 1;
  std::vector<double> now(static_cast<std::size_t>(width * height));
  const auto index = [&](std::int64_t x, std::int64_t y) { return static_cast<std::size_t>((y - y0) * width + (x - x0)); };
  for (std::int64_t y = y0; y < y0 + height; ++y)
    for (std::int64_t x = x0; x < x0 + width; ++x) now[index(x, y)] = first_value(x, y);
  auto next = now;
  for (int step = 1; step <= steps; ++step) {
    const region part(place, steps - step);
    for (std::int64_t y = part.y0; y < part.y1; ++y) {
      const double *const row = &now[index(part.x0, y)], *const above = row - width, *const below = row + width;
      double* const target = &next[index(part.x0, y)];
      for (std::int64_t i = 0; i < part.x1 - part.x0; ++i)
        target[i] = 0.25 * ((above[i] + below[i]) + (row[i - 1] + row[i + 1]));
    }
    std::swap(now, next);
  }
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(place.n) * static_cast<std::size_t>(place.n));
  const region block(place, 0);
  for (std::int64_t y = block.y0; y < block.y1; ++y)
    out.insert(out.end(), &now[index(block.x0, y)], &now[index(block.x0, y)] + place.n);
  return out;
}

}  // namespace pl::async
