// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/multigrid_field.hpp"

#include <cmath>
#include <utility>

#include "tools/triggered/stencil_field.hpp"

namespace pl::async {

multigrid_domain::multigrid_domain(int gx, int gy, int n) {
  for (int size = n; size >= kCoarsest; size /= 2) {
    level one{gx * size, gy * size, size, {}, {}};
    one.field.resize(static_cast<std::size_t>(one.width) * static_cast<std::size_t>(one.height));
    one.right.resize(one.field.size());
    levels_.push_back(std::move(one));
  }
  auto& finest = levels_.front();
  for (int y = 0; y < finest.height; ++y)
    for (int x = 0; x < finest.width; ++x) finest.right[static_cast<std::size_t>(y * finest.width + x)] = first_value(x, y);
}

void multigrid_domain::level::smooth(int count, bool is_from_zero) {
  auto next = field;
  for (int i = 0; i < count; ++i, is_from_zero = false) {
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x) {
        const auto cell = static_cast<std::size_t>(y * width + x);
        next[cell] =
            is_from_zero ? 0.125 * right[cell] : 0.5 * field[cell] + 0.125 * (sum_of_neighbours(x, y) + right[cell]);
      }
    std::swap(field, next);
  }
}

void multigrid_domain::cycle_at(std::size_t depth) {
  auto& current = levels_[depth];
  const bool is_from_zero = depth != 0;
  if (depth + 1 == levels_.size()) return current.smooth(coarsest_smooths(levels_.front().n), is_from_zero);
  current.smooth(kSmoothsBefore, is_from_zero);
  auto& coarse = levels_[depth + 1];
  for (int y = 0; y < coarse.height; ++y)
    for (int x = 0; x < coarse.width; ++x)
      coarse.right[static_cast<std::size_t>(y * coarse.width + x)] =
          (current.residual(2 * x, 2 * y) + current.residual(2 * x + 1, 2 * y)) +
          (current.residual(2 * x, 2 * y + 1) + current.residual(2 * x + 1, 2 * y + 1));
  cycle_at(depth + 1);
  for (int y = 0; y < current.height; ++y)
    for (int x = 0; x < current.width; ++x)
      current.field[static_cast<std::size_t>(y * current.width + x)] += coarse.between(x, y);
  current.smooth(kSmoothsAfter, false);
}

std::vector<double> multigrid_domain::block(const block_place& place) const {
  const auto& finest = levels_.front();
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(place.n) * static_cast<std::size_t>(place.n));
  for (int y = place.y() * place.n; y < (place.y() + 1) * place.n; ++y)
    for (int x = place.x() * place.n; x < (place.x() + 1) * place.n; ++x) out.push_back(finest.at(x, y));
  return out;
}

double multigrid_domain::residual_norm() const {
  const auto& finest = levels_.front();
  double sum = 0;
  for (int y = 0; y < finest.height; ++y)
    for (int x = 0; x < finest.width; ++x) sum += finest.residual(x, y) * finest.residual(x, y);
  return std::sqrt(sum / static_cast<double>(points()));
}

}  // namespace pl::async
