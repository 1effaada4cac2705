// SPDX-License-Identifier: Apache-2.0
// What a rank reports to the others: votes within a sample, and its results after a round.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/bandwidth/group.hpp"
#include "tools/bandwidth/runner.hpp"

namespace pl::bandwidth {

// Keeps the samples of all ranks in step. Each hook of the runner is a vote, so that a rank that fails ends the round for
// all at the same step, instead of leaving them at a barrier.
class sample_votes {
 public:
  sample_votes(group& ranks, unsigned samples, std::function<bool()> interrupted)
      : ranks_(ranks), expected_(2 * samples), interrupted_(std::move(interrupted)) {}
  run_hooks hooks();
  // The runner has returned. Tells the others of a failure that they do not know of yet.
  void settle(bool has_failed);

 private:
  status vote(char mine);
  group& ranks_;
  unsigned expected_;
  std::function<bool()> interrupted_;
  unsigned cast_ = 0;
  bool is_over_ = false;
};

// The report of one rank for one round.
struct round_report {
  enum class ending { fine, failed, interrupted, ended_by_others } outcome = ending::fine;
  failure reason;  // failed
  struct entry {
    std::size_t transfer = 0;      // of the round
    std::vector<double> gb_per_s;  // empty: another rank's, whose data arrived here
    mismatch wrong;
  };
  std::vector<entry> entries;
};
// `transfers`: which of the round's this rank has run. Arrivals, if any, are one for each transfer of the round, and in the
// report when something is wrong with them.
round_report make_report(const result<set_outcome>& outcome, const std::vector<std::size_t>& transfers);

// Collective: the reports of all ranks.
result<std::vector<round_report>> exchange_reports(group& ranks, const round_report& mine);

}  // namespace pl::bandwidth
