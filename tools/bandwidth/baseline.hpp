// SPDX-License-Identifier: Apache-2.0
// --baseline: this run against the result file of an earlier one, cell by cell.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/status.hpp"
#include "tools/bandwidth/outcome.hpp"

namespace pl::bandwidth {

struct baseline_finding {
  double before = 0;         // the earlier median
  double ratio = 0;          // this run's median / the earlier one (inverted for latencies): below 1 is worse
  bool significant = false;  // the 95 % confidence intervals of the means do not overlap
  bool slow = false;         // significant, and worse by more than the threshold
  bool fast = false;         // significant, and better by more than the threshold
  const char* verdict() const { return slow ? "slow" : fast ? "fast" : "same"; }
};

class baseline {
 public:
  // EINVAL, ENOENT: not a result file of `peerlane bandwidth`, or not readable.
  static result<baseline> load(const std::string& path, double threshold_percent);
  // The same as load, from the text of the file.
  static result<baseline> parse(const std::string& text, double threshold_percent);

  // Nothing if one of the two runs has no figure for this cell.
  std::optional<baseline_finding> compare(const std::string& key, const matrix& grid, std::size_t row,
                                          std::size_t column) const;
  std::size_t size() const { return cells_.size(); }
  bool simulated() const { return simulated_; }
  const std::string& machine() const { return machine_; }  // GPU name and driver, to say what is compared
  double threshold_percent() const { return threshold_percent_; }

 private:
  struct earlier {
    double median = 0, mean = 0, ci95 = 0;
    std::size_t samples = 0;
  };
  std::map<std::string, earlier> cells_;  // by series
  double threshold_percent_ = 5;
  bool simulated_ = false;
  std::string machine_;
};

}  // namespace pl::bandwidth
