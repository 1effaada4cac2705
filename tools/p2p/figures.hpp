// SPDX-License-Identifier: Apache-2.0
// From samples to the figures that are printed. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/p2p/settings.hpp"

namespace pl::p2p {

// The result of one library at one size.
struct measurement {
  std::size_t size_bytes = 0;
  int window = 1;
  int pairs = 1;
  repetition repeated;
  std::vector<double> samples_ns;    // of this rank: round trips (latency) or windows
  std::vector<double> batch_values;  // as printed: us or MB/s, one for each batch
  std::int64_t errors = 0;
};

// The reported figure of a sample or a mean of samples: half a round trip in us, or MB/s (10^6 bytes) of all pairs.
double figure_of(benchmark kind, const measurement& measured, double sample_ns);

// The figure of a run: that of one batch, or the median of several.
double headline(const measurement& measured);
// The figure of the median sample.
double median_figure(benchmark kind, const measurement& measured);
// The figure that `percent` of the samples reach: a latency no longer, a bandwidth no lower.
double percentile_figure(benchmark kind, const measurement& measured, double percent);

// The row of a result file, without what is the same for all rows.
nlohmann::json result_row(const settings& asked, const measurement& measured);

// "p99.9"
std::string percentile_name(double percent);

}  // namespace pl::p2p
