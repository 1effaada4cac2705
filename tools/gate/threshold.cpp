// SPDX-License-Identifier: Apache-2.0
// Thresholds from what was learnt.
#include <algorithm>
#include <cmath>

#include "tools/gate/gate.hpp"

namespace pl::gate {
namespace {

// Continued fraction of the incomplete beta function by the modified Lentz method.
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300, kEnough = 1e-14;
  constexpr int kMaxSteps = 500;
  const auto not_zero = [](double value) { return std::abs(value) < kTiny ? kTiny : value; };
  double c = 1, d = 1 / not_zero(1 - (a + b) * x / (a + 1)), out = d;
  for (int m = 1; m < kMaxSteps; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    for (const double term : {even, odd}) {
      d = 1 / not_zero(1 + term * d);
      c = not_zero(1 + term / c);
      out *= d * c;
    }
    if (std::abs(d * c - 1) < kEnough) break;
  }
  return out;
}

double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double above(double t, double freedom) { return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2; }

}  // namespace

double t_quantile(double chance, double freedom) {
  double low = 0, high = 1;
  while (above(high, freedom) > chance && high < 1e12) high *= 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (above(middle, freedom) > chance ? low : high) = middle;
  }
  return high;
}

std::optional<double> least_value(const baseline_figures& known, double chance) {
  const auto n = static_cast<double>(known.values.size());
  if (known.values.size() < 3) return std::nullopt;
  double mean = 0, squares = 0;
  for (const double one : known.values) mean += one / n;
  for (const double one : known.values) squares += (one - mean) * (one - mean);
  // Runs that agree by chance do not make a threshold sharper than the samples inside them are.
  const double scatter = std::max(std::sqrt(squares / (n - 1)), known.sample_scatter);
  const double least = mean - t_quantile(chance, n - 1) * scatter * std::sqrt(1 + 1 / n);
  // Runs that differ this much are useless: a limit of zero would let every machine pass silently.
  if (!(least > 0)) return std::nullopt;
  return least;
}

}  // namespace pl::gate
