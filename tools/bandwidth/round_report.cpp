// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/round_report.hpp"

#include <cerrno>
#include <cinttypes>
#include <sstream>

#include "base/text.hpp"
#include "tools/bandwidth/agreement.hpp"

namespace pl::bandwidth {
namespace {

constexpr char kFine = '.', kFailed = 'x', kInterrupted = 'i';

// Text, so that ranks may differ in layout. Doubles survive with 17 digits.
std::string to_text(const round_report& report) {
  using ending = round_report::ending;
  if (report.outcome == ending::failed) return format("failed %d ", report.reason.code) + report.reason.message;
  if (report.outcome == ending::interrupted) return "interrupted";
  if (report.outcome == ending::ended_by_others) return "ended";
  std::string out = "fine";
  for (const auto& one : report.entries) {
    out += format("\n%zu %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, one.transfer, one.wrong.bytes,
                  one.wrong.first_offset, one.wrong.expected, one.wrong.found, one.wrong.flipped_bits);
    for (const double rate : one.gb_per_s) out += format(" %.17g", rate);
  }
  return out;
}

round_report::entry parse_entry(const std::string& line) {
  std::istringstream input(line);
  round_report::entry one;
  input >> one.transfer >> one.wrong.bytes >> one.wrong.first_offset >> one.wrong.expected >> one.wrong.found >>
      one.wrong.flipped_bits;
  for (double rate = 0; input >> rate;) one.gb_per_s.push_back(rate);
  return one;
}

round_report from_text(const std::string& text) {
  using ending = round_report::ending;
  round_report report;
  std::istringstream input(text);
  std::string line, word;
  std::getline(input, line);
  std::istringstream first(line);
  first >> word;
  if (word == "failed") {
    report.outcome = ending::failed;
    first >> report.reason.code;
    std::getline(first >> std::ws, report.reason.message);
  }
  if (word == "interrupted") report.outcome = ending::interrupted;
  if (word == "ended") report.outcome = ending::ended_by_others;
  while (std::getline(input, line)) report.entries.push_back(parse_entry(line));
  return report;
}

}  // namespace

status sample_votes::vote(char mine) {
  ++cast_;
  const auto all = gather_texts(ranks_, std::string(1, mine));
  if (!all) {
    is_over_ = true;
    return all.error();
  }
  std::string votes;
  for (const auto& one : *all) votes += one;
  is_over_ = votes.find_first_not_of(kFine) != std::string::npos;
  if (votes.find(kFailed) != std::string::npos) return failure{ECONNABORTED, "another rank has failed"};
  if (votes.find(kInterrupted) != std::string::npos) return failure{ECANCELED, "interrupted"};
  return {};
}

run_hooks sample_votes::hooks() {
  run_hooks out;
  out.before_release = [this] { return vote(kFine); };
  out.after_sample = [this] { return vote(interrupted_ && interrupted_() ? kInterrupted : kFine); };
  return out;
}

void sample_votes::settle(bool has_failed) {
  if (has_failed && !is_over_ && cast_ < expected_) static_cast<void>(vote(kFailed));  // the reason goes with the report
}

round_report make_report(const result<set_outcome>& outcome, const std::vector<std::size_t>& transfers) {
  using ending = round_report::ending;
  round_report report;
  if (!outcome) {
    const int code = outcome.error().code;
    report.outcome = code == ECANCELED      ? ending::interrupted
                     : code == ECONNABORTED ? ending::ended_by_others
                                            : ending::failed;
    report.reason = outcome.error();
    return report;
  }
  for (std::size_t i = 0; i < transfers.size(); ++i)
    report.entries.push_back({transfers[i], outcome->each[i].own_gb_per_s, outcome->each[i].wrong});
  for (std::size_t i = 0; i < outcome->arrived.size(); ++i)
    if (outcome->arrived[i].bytes != 0) report.entries.push_back({i, {}, outcome->arrived[i]});
  return report;
}

result<std::vector<round_report>> exchange_reports(group& ranks, const round_report& mine) {
  const auto all = gather_texts(ranks, to_text(mine));
  if (!all) return all.error();
  std::vector<round_report> reports;
  for (const auto& one : *all) reports.push_back(from_text(one));
  return reports;
}

}  // namespace pl::bandwidth
