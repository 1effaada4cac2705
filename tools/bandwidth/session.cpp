// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/session.hpp"

#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "tools/bandwidth/case_plan.hpp"
#include "tools/bandwidth/compat_json.hpp"
#include "tools/bandwidth/native_text.hpp"
#include "tools/bandwidth/result_rows.hpp"
#include "tools/bandwidth/transfer_case.hpp"
#include "tools/bandwidth/transfer_grammar.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/terminal.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kOriginalBytes = 512u << 20;

void open_for_writing(std::ofstream& file, const std::string& path) {
  errno = 0;
  file.open(path, std::ios::binary | std::ios::trunc);
  if (!file) throw tools::tool_failure(format("cannot write %s: %s", path.c_str(), errno_text(errno).c_str()));
}

test_outcome without_run(int index, const std::string& key, test_state state, std::string reason) {
  test_outcome out;
  out.index = index;
  out.key = key;
  out.state = state;
  out.reason = std::move(reason);
  return out;
}

}  // namespace

bandwidth_session::bandwidth_session(const bandwidth_options& options, const session_parts& parts, tools::report& out)
    : options_(options),
      test_(options.test),
      parts_(parts),
      out_(out),
      links_(options.test.judge ? read_links(parts.gpus) : machine_links{}),
      pool_(parts.gpus, host_memory_options{.bind_near_gpu = !options.test.disable_affinity}),
      runner_(parts.gpus),
      context_{.gpus = parts.gpus,
               .pool = pool_,
               .run = runner_,
               .options = test_,
               .links = links_,
               .ranks = parts.ranks,
               .interrupted = [this] { return interrupt_.raised(); },
               .progress =
                   [this](std::size_t done, std::size_t, const std::string& description) {
                     if (progress_) progress_->start_step(runs_before_ + done, description);
                   },
               .cell_done = [this](const std::string& key, const matrix& grid, std::size_t row,
                                   std::size_t column) { cell_done(key, grid, row, column); }} {
  test_.judge_small = options.sizes.size() == 1;
  if (!options.jsonl_path.empty() && talks()) open_for_writing(lines_, options.jsonl_path);
}

int bandwidth_session::run(const std::vector<selected>& selection) {
  std::size_t total = 0;
  for (const selected& one : selection) total += planned_runs(one);
  if (talks()) progress_.emplace("bandwidth", total);
  for (const selected& one : selection) {
    if (is_over()) break;
    run_one(one);
    runs_before_ += planned_runs(one);
  }
  progress_.reset();
  if (talks()) write_files();
  if (parts_.ranks != nullptr) tools::must(parts_.ranks->slow_barrier());
  // Rank 0 reports for all ranks: a launcher takes any other rank's failure for a crash.
  return talks() ? exit_code() : tools::kExitOk;
}

// Ranks must agree when to stop, or they wait for each other, so the agreed outcomes decide.
bool bandwidth_session::is_over() const {
  if (parts_.ranks == nullptr) return interrupt_.raised();
  return !outcomes_.empty() && outcomes_.back().state == test_state::interrupted;
}

std::size_t bandwidth_session::planned_runs(const selected& one) const {
  const std::size_t sizes = one.is_transfer || (one.test != nullptr && one.test->has_size) ? options_.sizes.size() : 1;
  if (one.test == nullptr || one.test->group == testcase::kind::multi_node) return sizes;
  return sizes * plan_of(one.test->plan, shape_of(parts_.gpus), test_).runs.size();
}

void bandwidth_session::run_one(const selected& one) {
  const std::size_t first = outcomes_.size();
  const bool has_size = one.is_transfer || (one.test != nullptr && one.test->has_size);
  const std::size_t turns = has_size ? options_.sizes.size() : 1;
  for (std::size_t i = 0; i < turns && !is_over(); ++i) {
    test_.bytes = options_.sizes[i];
    outcomes_.push_back(outcome_of(one));
    write_line(test_row(outcomes_.back()));
  }
  if (talks()) print(first, one);
}

test_outcome bandwidth_session::outcome_of(const selected& one) {
  if (one.is_transfer) return transfer_outcome(one.asked);
  if (one.test == nullptr)
    return without_run(kUnknownTestcase, one.asked, test_state::error, "no such testcase; -l lists them");
  index_now_ = one.test->index;
  const int processes = parts_.ranks != nullptr ? parts_.ranks->size() : 1;
  if (processes > 1 && one.test->group != testcase::kind::multi_node)
    return without_run(index_now_, one.test->key, test_state::waived,
                       format("a testcase of one process, and %d were started: they would measure each other", processes));
  return one.test->run(*one.test, context_);
}

test_outcome bandwidth_session::transfer_outcome(const std::string& line) {
  index_now_ = kTransferLine;
  const auto transfers = parse_transfers(line, test_.bytes, parts_.gpus.count());
  if (!transfers) return without_run(kTransferLine, line, test_state::error, transfers.error().message);
  const std::string key = to_string(*transfers);
  const testcase self{kTransferLine, kTransferLine, key.c_str(), "", testcase::kind::ours, true, nullptr};
  return execute(self, context_, plan_transfers(*transfers));
}

compat_style bandwidth_session::style() const {
  return {options_.verbose, options_.perf_formatter, options_.test.original_mistakes, options_.sizes[0] < kOriginalBytes};
}

void bandwidth_session::print(std::size_t first, const selected& one) {
  const std::span<const test_outcome> own_outcomes = std::span(outcomes_).subspan(first);
  if (own_outcomes.empty() || (options_.compat && options_.json_to_stdout)) return;
  std::string text;
  if (options_.compat)
    for (const test_outcome& each : own_outcomes)
      text += each.index == kUnknownTestcase ? compat_not_found(one.asked) : compat_test(each, style());
  else if (own_outcomes.size() > 1) text = native_sweep_text(own_outcomes);
  else text = native_text(own_outcomes[0], parts_.reference);
  if (!options_.compat && options_.verbose)
    for (const test_outcome& each : own_outcomes) text += native_samples(each);
  text = tools::without_controls(text);  // names that were asked for
  std::fputs((options_.compat ? text : tools::paint_verdicts(text)).c_str(), stdout);
  std::fflush(stdout);
}

void bandwidth_session::cell_done(const std::string& key, const matrix& grid, std::size_t row, std::size_t column) {
  if (!lines_.is_open()) return;
  auto line = cell_row(key, index_now_, grid, row, column, parts_.reference);
  const auto& samples = grid.cells[row][column].samples;
  if (samples.size() <= kMaxSamplesPerSeries) line["samples"] = samples;
  write_line(line);
}

void bandwidth_session::write_line(const nlohmann::json& row) {
  if (!lines_.is_open()) return;
  lines_ << row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n" << std::flush;
  if (!lines_) throw tools::tool_failure(format("%s can no longer be written", options_.jsonl_path.c_str()));
}

void bandwidth_session::write_files() {
  if (options_.compat && options_.json_to_stdout)
    std::fputs(
        compat_json(parts_.environment, outcomes_, style(), "", parts_.gpus.simulated() ? tools::kSimulatedHeader : "")
            .c_str(),
        stdout);
  else if (options_.compat) std::fputs(compat_closing().c_str(), stdout);
  else std::fputs(tools::without_controls(native_closing(outcomes_, parts_.reference)).c_str(), stdout);
  auto& file = out_.file();
  for (const test_outcome& each : outcomes_) add_rows(file, each, parts_.reference);
  if (interrupt_.raised()) file.add_note("interrupted: the testcases after the last one here did not run");
  for (const std::string& remark : links_.remarks) file.add_note(remark);
  const int code = exit_code_of(outcomes_, interrupt_.raised(), parts_.reference);
  file.set_parameter("interrupted", interrupt_.raised());
  file.set_parameter("exit_code", exit_code());
  file.set_pass(code == tools::kExitOk);
  out_.write();
  if (options_.csv_path.empty()) return;
  std::ofstream table;
  open_for_writing(table, options_.csv_path);
  table << csv_text(outcomes_, parts_.reference) << std::flush;
  if (!table) throw tools::tool_failure(format("%s cannot be written", options_.csv_path.c_str()));
}

int bandwidth_session::exit_code() const {
  return options_.exit_as_original ? original_exit_code(outcomes_, interrupt_.raised())
                                   : exit_code_of(outcomes_, interrupt_.raised(), parts_.reference);
}

}  // namespace pl::bandwidth
