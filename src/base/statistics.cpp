// SPDX-License-Identifier: Apache-2.0
#include "base/statistics.hpp"

#include <algorithm>
#include <cmath>

namespace pl {

double quantile_of_sorted(std::span<const double> sorted, double fraction) {
  const auto rank = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

summary summarize(std::span<const double> samples) {
  summary out;
  if (samples.empty()) return out;
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  out.count = sorted.size();
  out.min = sorted.front();
  out.max = sorted.back();
  double total = 0;
  for (const double s : sorted) total += s;
  out.mean = total / static_cast<double>(out.count);
  double squares = 0;
  for (const double s : sorted) squares += (s - out.mean) * (s - out.mean);
  out.stddev = out.count > 1 ? std::sqrt(squares / static_cast<double>(out.count - 1)) : 0.0;
  out.p50 = quantile_of_sorted(sorted, 0.50);
  out.p90 = quantile_of_sorted(sorted, 0.90);
  out.p99 = quantile_of_sorted(sorted, 0.99);
  out.p999 = quantile_of_sorted(sorted, 0.999);
  return out;
}

std::vector<histogram_bin> make_histogram(std::span<const double> samples, std::size_t bins) {
  std::vector<histogram_bin> out;
  if (samples.empty() || bins == 0) return out;
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  const double width = (*high - *low) / static_cast<double>(bins);
  for (std::size_t i = 0; i < bins; ++i)
    out.push_back(
        {*low + width * static_cast<double>(i), i + 1 == bins ? *high : *low + width * static_cast<double>(i + 1), 0});
  for (const double s : samples) {
    const double position = width > 0 ? (s - *low) / width : 0.0;
    out[std::min(static_cast<std::size_t>(position), bins - 1)].count++;
  }
  return out;
}

}  // namespace pl
