// SPDX-License-Identifier: Apache-2.0
// Order statistics over raw samples. Quantiles use the nearest-rank definition (no interpolation), so every reported
// figure is one that was measured.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace pl {

struct summary {
  std::size_t count = 0;
  double min = 0, max = 0, mean = 0;
  double p50 = 0, p90 = 0, p99 = 0, p999 = 0;
  double stddev = 0;  // sample standard deviation (n - 1)
};

// All fields are 0 if there are no samples. Does not change `samples`.
summary summarize(std::span<const double> samples);

// Smallest sample such that at least `fraction` (0..1] of all samples are <= it. Precondition: sorted, not empty.
double quantile_of_sorted(std::span<const double> sorted, double fraction);

struct histogram_bin {
  double low = 0, high = 0;  // [low, high), the last bin includes high
  std::size_t count = 0;
};

// `bins` equal bins from the smallest sample to the largest. Every sample is in exactly one bin. Empty if no samples.
std::vector<histogram_bin> make_histogram(std::span<const double> samples, std::size_t bins);

}  // namespace pl
