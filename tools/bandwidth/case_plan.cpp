// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/case_plan.hpp"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <set>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/bandwidth/cell_judge.hpp"
#include "tools/bandwidth/link_share.hpp"

namespace pl::bandwidth {
namespace {

// Threads of a reading kernel leave 8 bytes each and have 16 to read, but a single block has all its threads.
constexpr std::uint64_t kLeastDigestBytes = 8192;

constexpr const char* kInterrupted = "interrupted before it was measured";

// One run of a plan: buffers, the measurement, the cells.
class run_execution {
 public:
  run_execution(test_context& context, test_outcome& outcome, const cell_run& run, bool is_original)
      : context_(context), outcome_(outcome), run_(run), is_original_(is_original) {}

  // Returns false if interrupted; the cells say so.
  bool measure() { return run_.latency ? measure_latency() : measure_transfers(); }

  // Repeats a measurement that another tenant's burst disturbed, but only a bounded number of times on a machine that stays
  // busy.
  bool measure_until_steady() {
    constexpr unsigned kMaxAttempts = 3;
    if (!measure()) return false;
    while (attempt_ < kMaxAttempts && is_varied()) {
      const auto before = outcome_.matrices;
      ++attempt_;
      if (measure()) continue;
      outcome_.matrices = before;  // interrupted: what was measured stays
      return true;
    }
    return true;
  }

 private:
  cell& cell_at(const cell_target& target) { return outcome_.matrices[target.matrix].cells[target.row][target.column]; }

  bool fail(const failure& error) {
    const bool impossible_here = error.code == ENOTSUP || error.code == ENOSYS;
    for (const cell_target& target : run_.targets) {
      cell& one = cell_at(target);
      one.state = impossible_here || error.code == ECANCELED ? cell_state::not_applicable : cell_state::error;
      one.reason = error.code == ECANCELED ? kInterrupted : error.message;
      one.path = path_of(target);
      one.judged.reset();
    }
    return error.code != ECANCELED;
  }

  unsigned gpus_at_host() const {
    std::set<int> gpus;
    for (const auto& one : run_.transfers)
      for (const auto& [host, gpu] : {std::pair(one.source, one.destination), std::pair(one.destination, one.source)})
        if (host.type == place::kind::host && gpu.type == place::kind::gpu) gpus.insert(gpu.index);
    return std::max(1u, static_cast<unsigned>(gpus.size()));
  }

  transfer_path path_of(const cell_target& target) const {
    transfer_path path = run_.latency_path;
    if (!run_.latency) {
      const transfer_spec& transfer = run_.transfers[target.transfer];
      path.source = transfer.source;
      path.destination = transfer.destination;
      path.executor = transfer.executor;
      path.bytes = transfer.bytes;
      path.is_local_copy = transfer.source.type == place::kind::gpu && transfer.source == transfer.destination;
    }
    path.same_direction = target.same_direction;
    path.gpus_at_host = gpus_at_host();
    path.opposite_too = target.opposite_too;
    path.is_sum_of_both = target.opposite_too && target.rate_kind != cell_target::rate::own;
    return path;
  }

  result<std::vector<bound_transfer>> bind() {
    std::map<std::tuple<place, int>, unsigned> used;  // slots: no two ends share memory
    std::vector<bound_transfer> out;
    for (const transfer_spec& transfer : run_.transfers) {
      bound_transfer bound{
          {}, {}, transfer.executor, transfer.bytes, transfer.measured, transfer.copies, run_.without_peer_access};
      for (const bool is_source : {true, false}) {
        const place& end = is_source ? transfer.source : transfer.destination;
        // Only host memory without a node is another one for each GPU.
        const bool near_gpu = end.type == place::kind::host && end.index < 0;
        const unsigned slot = used[{end, near_gpu ? transfer.executor.gpu : -1}]++;
        const bool keeps_digests = !is_source && transfer.executor.kind == executor_kind::sm_read;
        const std::uint64_t bytes = keeps_digests ? std::max(transfer.bytes, kLeastDigestBytes) : transfer.bytes;
        auto view = context_.pool.get(end, bytes, slot, transfer.executor.gpu);
        if (!view) return view.error();
        (is_source ? bound.source : bound.destination) = *view;
      }
      out.push_back(bound);
    }
    return out;
  }

  bool measure_transfers() {
    auto bound = bind();
    if (!bound && bound.error().code == ENOMEM) {
      context_.pool.trim();  // buffers kept from other testcases may be all that is missing
      bound = bind();
    }
    if (!bound) return fail(bound.error());
    run_hooks hooks;
    hooks.after_sample = [this]() -> status {
      if (context_.interrupted && context_.interrupted()) return failure{ECANCELED, "interrupted"};
      return {};
    };
    const auto measured = context_.run.run(*bound, context_.options.settings, hooks);
    if (!measured) return fail(measured.error());
    for (const cell_target& target : run_.targets) {
      const bound_transfer& transfer = (*bound)[target.transfer];
      const memory_view& host = transfer.source.location.type == place::kind::host ? transfer.source : transfer.destination;
      fill(target, *measured, host.host != nullptr ? context_.pool.node_of(host) : -1);
    }
    return true;
  }

  std::vector<double> samples_of(const cell_target& target, const set_outcome& measured) const {
    using rate = cell_target::rate;
    if (target.rate_kind == rate::own) return measured.each[target.transfer].own_gb_per_s;
    std::vector<double> out = measured.total_gb_per_s;
    if (target.rate_kind == rate::half_of_total)
      for (double& one : out) one /= 2;
    if (target.rate_kind == rate::sum_of_own) {
      std::fill(out.begin(), out.end(), 0);
      for (const auto& each : measured.each)
        for (std::size_t i = 0; i < out.size() && i < each.own_gb_per_s.size(); ++i) out[i] += each.own_gb_per_s[i];
    }
    return out;
  }

  // A rate is not trusted either if another transfer of the same run arrived wrong: interference counts for every cell.
  void check_data(const cell_target& target, const set_outcome& measured, cell& one) const {
    for (std::size_t i = 0; i < measured.each.size(); ++i) {
      const bool concerns =
          target.rate_kind != cell_target::rate::own || i == target.transfer || !run_.transfers[i].measured;
      const mismatch& wrong = measured.each[i].wrong;
      if (!concerns || wrong.bytes == 0) continue;
      const transfer_spec& transfer = run_.transfers[i];
      one.state = cell_state::mismatch;
      one.wrong = wrong;
      one.reason =
          format("%" PRIu64 " of %" PRIu64 " bytes from %s to %s by %s arrived wrong; the first at offset %" PRIu64
                 ": expected %016" PRIx64 ", found %016" PRIx64 " (bits that ever differ: %016" PRIx64 ")",
                 wrong.bytes, transfer.bytes, to_string(transfer.source).c_str(), to_string(transfer.destination).c_str(),
                 to_string(transfer.executor.kind), wrong.first_offset, wrong.expected, wrong.found, wrong.flipped_bits);
      return;
    }
  }

  void fill(const cell_target& target, const set_outcome& measured, int host_node) {
    cell& one = cell_at(target);
    one.state = cell_state::measured;
    one.attempts = attempt_;
    one.judged.reset();
    one.reason.clear();
    one.samples = samples_of(target, measured);
    const auto statistics = describe(one.samples);
    one.value = context_.options.use_mean ? statistics.mean : statistics.median;
    one.path = path_of(target);
    for (place* end : {&one.path.source, &one.path.destination})
      if (end->type == place::kind::host && host_node >= 0) end->index = host_node;  // the node that holds the pages
    check_data(target, measured, one);
    if (one.state != cell_state::measured || !has_expectation(target)) return;
    if (run_.judged_together) judge_cell(context_, one, expectation_of(target));
    else judge_cell(context_, one);
  }

  std::optional<expectation> expectation_of(const cell_target& target) {
    if (!together_) {
      std::vector<transfer_path> paths;
      for (std::size_t i = 0; i < run_.transfers.size(); ++i) paths.push_back(path_of({.transfer = i}));
      together_ = expect_together(context_.links, paths);
    }
    return target.rate_kind == cell_target::rate::own ? together_->each[target.transfer] : together_->total;
  }

  bool has_expectation(const cell_target& target) const {
    if (!target.has_expectation || !target.through_one_link) return target.has_expectation;
    const auto gpu = static_cast<std::size_t>(run_.transfers[target.transfer].executor.gpu);
    return gpu < context_.links.gpus.size() && context_.links.gpus[gpu].nvlinks_to_gpu.empty();
  }

  bool measure_latency() {
    const auto measured = run_.latency(context_);
    if (!measured) return fail(measured.error());
    for (const cell_target& target : run_.targets) {
      cell& one = cell_at(target);
      one.state = cell_state::measured;
      one.reason.clear();
      one.samples = measured->samples_ns;
      const bool mean = context_.options.use_mean || (context_.options.mean_latency && is_original_);
      one.value = mean ? measured->mean_ns : describe(one.samples).median;
      one.path = path_of(target);
      if (target.has_expectation) judge_cell(context_, one);
    }
    return true;
  }

  bool is_varied() {
    return std::any_of(run_.targets.begin(), run_.targets.end(), [&](const cell_target& target) {
      const auto& judged = cell_at(target).judged;
      return judged && judged->is_varied;
    });
  }

  test_context& context_;
  test_outcome& outcome_;
  const cell_run& run_;
  bool is_original_;
  std::optional<shared_expectations> together_;
  unsigned attempt_ = 1;
};

void mark_interrupted(test_outcome& outcome, std::span<const cell_run> rest) {
  for (const cell_run& run : rest)
    for (const cell_target& target : run.targets)
      outcome.matrices[target.matrix].cells[target.row][target.column].reason = kInterrupted;
}

void raise(test_outcome& outcome, test_state state, const std::string& reason, int& severity, int how_severe) {
  if (how_severe <= severity) return;
  severity = how_severe;
  outcome.state = state;
  outcome.reason = reason;
}

std::string cell_name(const matrix& grid, std::size_t row, std::size_t column) {
  return format("%s %s, %s %s", grid.row_label.c_str(), grid.rows[row].c_str(), grid.column_label.c_str(),
                grid.columns[column].c_str());
}

}  // namespace

bool machine_shape::has_peers() const {
  for (int source = 0; source < gpus(); ++source)
    for (int destination = 0; destination < gpus(); ++destination)
      if (reaches(source, destination)) return true;
  return false;
}

machine_shape shape_of(gpu_set& gpus) {
  machine_shape shape;
  shape.kernels_share = !gpus.simulated();
  for (int source = 0; source < gpus.count(); ++source) {
    shape.multiprocessors.push_back(gpus.multiprocessors(source));
    shape.bulk_copies.push_back(gpus.has_bulk_copies(source));
    std::vector<bool> row;
    for (int destination = 0; destination < gpus.count(); ++destination) row.push_back(gpus.can_access(source, destination));
    shape.can_access.push_back(std::move(row));
  }
  return shape;
}

std::vector<std::string> gpu_labels(int count) {
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) out.push_back(std::to_string(i));
  return out;
}

matrix make_matrix(std::string part, std::string title, std::vector<std::string> rows, std::vector<std::string> columns) {
  matrix out;
  out.part = std::move(part);
  out.title = std::move(title);
  out.rows = std::move(rows);
  out.columns = std::move(columns);
  out.cells.assign(out.rows.size(), std::vector<cell>(out.columns.size()));
  return out;
}

unsigned share_of_multiprocessors(const machine_shape& shape, const test_options& options, int gpu, std::size_t count) {
  if (count <= 1) return options.sm_count;
  const unsigned all = shape.multiprocessors[static_cast<std::size_t>(gpu)];
  const unsigned budget = options.sm_count == 0 ? all : std::min(options.sm_count, all);
  return std::max(1u, budget / static_cast<unsigned>(count));
}

void conclude(test_outcome& outcome, bool interrupted) {
  int severity = 0;
  std::size_t measured = 0;
  std::string why_not;
  for (const matrix& each : outcome.matrices)
    for (std::size_t row = 0; row < each.cells.size(); ++row)
      for (std::size_t column = 0; column < each.cells[row].size(); ++column) {
        const cell& one = each.cells[row][column];
        const std::string named = cell_name(each, row, column) + ": ";
        if (one.state == cell_state::mismatch) raise(outcome, test_state::failed, named + one.reason, severity, 4);
        if (one.state == cell_state::error) raise(outcome, test_state::error, named + one.reason, severity, 3);
        if (one.judged && one.judged->level != verdict_level::good)
          raise(outcome, one.judged->is_varied ? test_state::unsteady : test_state::slow, named + one.judged->reason,
                severity, one.judged->is_varied ? 1 : 2);
        if (one.state == cell_state::measured) ++measured;
        // The diagonal of a matrix of pairs does not count as a reason.
        else if (one.state == cell_state::not_applicable && (row != column || each.rows.size() == 1)) why_not = one.reason;
      }
  if (interrupted) {
    outcome.state = test_state::interrupted;
    if (outcome.reason.empty()) outcome.reason = "interrupted after " + plural(measured, "cell");
  } else if (severity == 0 && measured == 0) {
    outcome.state = test_state::waived;
    outcome.reason = why_not;
  }
}

test_outcome execute(const testcase& self, test_context& context, case_plan plan) {
  test_outcome outcome;
  outcome.index = self.index;
  outcome.key = self.key;
  if (!plan.waived.empty()) {
    outcome.state = test_state::waived;
    outcome.reason = plan.waived;
    return outcome;
  }
  const std::uint64_t begin_ns = monotonic_ns();
  outcome.matrices = std::move(plan.matrices);
  bool interrupted = false;
  for (std::size_t i = 0; i < plan.runs.size() && !interrupted; ++i) {
    const cell_run& run = plan.runs[i];
    interrupted = context.interrupted && context.interrupted();
    if (!interrupted) {
      if (context.progress) context.progress(i, plan.runs.size(), std::string(self.key) + "  " + run.name);
      run_execution execution(context, outcome, run, self.group == testcase::kind::single_node);
      interrupted = !execution.measure_until_steady();
    }
    if (interrupted) mark_interrupted(outcome, std::span(plan.runs).subspan(i));
    for (const cell_target& target : run.targets)
      if (context.cell_done && !interrupted)
        context.cell_done(outcome.key, outcome.matrices[target.matrix], target.row, target.column);
  }
  rejudge_with_evidence(context, outcome);
  conclude(outcome, interrupted);
  outcome.seconds = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
  return outcome;
}

}  // namespace pl::bandwidth
