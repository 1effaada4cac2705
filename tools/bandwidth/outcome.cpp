// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/outcome.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/statistics.hpp"

namespace pl::bandwidth {
namespace {

// Two-sided 95 % quantiles of Student's t for 1..30 degrees of freedom; beyond, within 2.3 % of the normal one.
// Source: NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
constexpr std::array kStudent95 = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                   2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                   2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};

}  // namespace

sample_statistics describe(const std::vector<double>& samples) {
  const summary all = summarize(samples);
  sample_statistics out;
  if (all.count == 0) return out;
  // For an even number of samples, the mean of the middle two, as the original reports it.
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  out.median = sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  out.mean = all.mean;
  out.min = all.min;
  out.max = all.max;
  out.p99 = all.p99;
  out.stddev = all.stddev;
  if (all.count < 2) return out;
  if (all.mean > 0) out.coefficient_of_variation = all.stddev / all.mean;
  const std::size_t freedom = all.count - 1;
  const double t = freedom <= kStudent95.size() ? kStudent95[freedom - 1] : 1.960;
  out.ci95_half_width = t * all.stddev / std::sqrt(static_cast<double>(all.count));
  return out;
}

const char* to_string(test_state state) {
  switch (state) {
    case test_state::passed:
      return "passed";
    case test_state::waived:
      return "waived";
    case test_state::failed:
      return "failed";
    case test_state::error:
      return "error";
    case test_state::slow:
      return "slow";
    case test_state::unsteady:
      return "unsteady";
    case test_state::interrupted:
      return "interrupted";
  }
  return "?";
}

double sum_of(const matrix& one) {
  double sum = 0;
  for (const auto& row : one.cells)
    for (const cell& each : row)
      if (each.state == cell_state::measured) sum += each.value;
  return sum;
}

}  // namespace pl::bandwidth
