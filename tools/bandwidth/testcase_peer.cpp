// SPDX-License-Identifier: Apache-2.0
// Testcases between GPUs: 4-7, 12-15, 20-23, 28-31, and ours without peer access and with all pairs at once.
#include "base/text.hpp"
#include "tools/bandwidth/case_plan.hpp"

namespace pl::bandwidth {
namespace {

enum class shape_of_case { pair, pair_both, all_to_one, one_to_all, all_to_all, staged };

struct peer_case {
  shape_of_case shape;
  bool reads;  // the GPU whose copy engine or kernel works pulls; else it pushes
  executor_kind kind;
};

// The eight tests by copy engine and those by kernels are the same, in the same order.
peer_case peer_case_of(int index) {
  using enum shape_of_case;
  if (index == 53) return {staged, false, executor_kind::ce};
  if (index == 54 || index == 55) return {all_to_all, false, index == 54 ? executor_kind::ce : executor_kind::sm};
  const bool by_bulk_copies = index >= 71;
  const bool by_kernel = index >= 20;
  const int at_ce = by_bulk_copies ? index - 67 : by_kernel ? index - 16 : index;
  const auto kind = by_bulk_copies ? executor_kind::tma : by_kernel ? executor_kind::sm : executor_kind::ce;
  switch (at_ce) {
    case 4:
      return {pair, true, kind};
    case 5:
      return {pair, false, kind};
    case 6:
      return {pair_both, true, kind};
    case 7:
      return {pair_both, false, kind};
    case 12:
      return {all_to_one, false, kind};
    case 13:
      return {all_to_one, true, kind};
    case 14:
      return {one_to_all, false, kind};
    default:
      return {one_to_all, true, kind};
  }
}

struct peer_planner {
  int index;
  peer_case spec;
  const machine_shape& shape;
  const test_options& options;

  // `worker` pulls from `other`, or pushes to it.
  transfer_spec transfer(int worker, int other, bool reads, std::size_t kernels_on_worker) const {
    transfer_spec out{gpu_place(worker), gpu_place(other), {spec.kind, worker, 0}, options.bytes};
    if (reads) std::swap(out.source, out.destination);
    if (is_kernel(spec.kind)) out.executor.width = share_of_multiprocessors(shape, options, worker, kernels_on_worker);
    return out;
  }

  // Arrows show the direction of the data. The original's point at the GPU that works.
  const char* arrow(bool from_row_to_column) const { return from_row_to_column != options.original_mistakes ? "->" : "<-"; }
  std::string title(const char* middle, const char* suffix) const {
    return format("memcpy %s GPU(row) %s GPU(column) %sbandwidth (GB/s)", to_string(spec.kind), middle, suffix);
  }
  matrix pair_matrix(std::string part, std::string text) const {
    const auto labels = gpu_labels(shape.gpus());
    matrix out = make_matrix(std::move(part), std::move(text), labels, labels);
    out.row_label = "GPU";
    for (int row = 0; row < shape.gpus(); ++row)
      for (int column = 0; column < shape.gpus(); ++column)
        out.cells[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)].reason =
            row == column ? "a pair needs two GPUs" : format("no peer access between GPU %d and GPU %d", row, column);
    return out;
  }

  bool is_chosen(int row, int column) const {
    return options.pairs.includes(row, column) &&
           (spec.kind != executor_kind::tma || shape.bulk_copies[static_cast<std::size_t>(row)]);
  }

  template <class Add>
  void for_each_pair(case_plan& plan, Add&& add) const {
    for (int row = 0; row < shape.gpus(); ++row)
      for (int column = 0; column < shape.gpus(); ++column) {
        if (!shape.reaches(row, column)) continue;
        if (!is_chosen(row, column)) {
          for (matrix& each : plan.matrices)
            each.cells[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)].reason = kNotChosen;
          continue;
        }
        cell_run run;
        run.name = format("GPU %d, GPU %d", row, column);
        add(run, row, column);
        plan.runs.push_back(std::move(run));
      }
  }
  static cell_target target_at(std::size_t matrix_index, int row, int column) {
    cell_target out;
    out.matrix = matrix_index;
    out.row = static_cast<std::size_t>(row);
    out.column = static_cast<std::size_t>(column);
    return out;
  }

  void plan_pairs(case_plan& plan) const {
    plan.matrices.push_back(pair_matrix("", title(arrow(!spec.reads), "")));
    for_each_pair(plan, [&](cell_run& run, int row, int column) {
      run.transfers.push_back(transfer(row, column, spec.reads, 1));
      run.targets.push_back(target_at(0, row, column));
    });
  }

  void plan_pairs_both(case_plan& plan) const {
    const char* parts[2] = {spec.reads ? "read1" : "write1", spec.reads ? "read2" : "write2"};
    const char* words[2] = {spec.reads ? "Read1 " : "Write1 ", spec.reads ? "Read2 " : "Write2 "};
    for (int i = 0; i < 2; ++i) plan.matrices.push_back(pair_matrix(parts[i], title("<->", words[i])));
    plan.matrices.push_back(pair_matrix("total", title("<->", "Total ")));
    // The original's write1 is the column GPU's.
    const bool swapped = options.original_mistakes && !spec.reads;
    for_each_pair(plan, [&](cell_run& run, int row, int column) {
      run.transfers.push_back(transfer(row, column, spec.reads, 1));
      run.transfers.push_back(transfer(column, row, spec.reads, 1));
      if (swapped) std::swap(run.transfers[0], run.transfers[1]);
      for (std::size_t i = 0; i < 3; ++i) {
        cell_target target = target_at(i, row, column);
        target.opposite_too = true;
        target.transfer = i == 2 ? 0 : i;
        if (i == 2) target.rate_kind = options.original_mistakes ? cell_target::rate::sum_of_own : cell_target::rate::total;
        run.targets.push_back(target);
      }
    });
  }

  // A fan: one GPU ("one") and all GPUs that it reaches, total over the common window.
  void plan_fan(case_plan& plan) const {
    bool one_works = spec.shape == shape_of_case::one_to_all;
    bool reads = spec.reads;
    // The original lets the source work in both read tests by kernels, so they measure writes.
    if (options.original_mistakes && spec.reads && spec.kind == executor_kind::sm) {
      one_works = !one_works;
      reads = false;
    }
    const bool into_one = (spec.shape == shape_of_case::one_to_all) == spec.reads;
    matrix out = make_matrix("", title(arrow(into_one), ""), {"0"}, gpu_labels(shape.gpus()));
    out.row_label = "all";
    plan.matrices.push_back(std::move(out));
    for (int one = 0; one < shape.gpus(); ++one) {
      std::vector<int> others;
      for (int other = 0; other < shape.gpus(); ++other)
        if (one_works ? shape.reaches(one, other) : shape.reaches(other, one)) others.push_back(other);
      auto& cell = plan.matrices[0].cells[0][static_cast<std::size_t>(one)];
      cell.reason = format("GPU %d has peer access to no other GPU", one);
      if (others.empty()) continue;
      cell_run run;
      run.name = format("GPU %d", one);
      for (const int other : others)
        run.transfers.push_back(one_works ? transfer(one, other, reads, others.size()) : transfer(other, one, reads, 1));
      cell_target target = target_at(0, 0, one);
      target.rate_kind = cell_target::rate::total;
      target.through_one_link = true;
      run.targets.push_back(target);
      plan.runs.push_back(std::move(run));
    }
  }

  void plan_all_to_all(case_plan& plan) const {
    plan.matrices.push_back(pair_matrix("", title("->", "")));
    matrix total = make_matrix("total", title("->", "total of all pairs, "), {"0"}, {"all"});
    total.row_label = "all";
    plan.matrices.push_back(std::move(total));
    plan.matrices[1].is_native_only = true;
    cell_run run;
    run.name = "all pairs";
    for (int row = 0; row < shape.gpus(); ++row) {
      // Every GPU begins with the one after it: copy engines take the streams in turn, and all would begin with GPU 0 (four
      // H200: 930 GB/s of 1580).
      std::vector<int> others;
      for (int step = 1; step < shape.gpus(); ++step)
        if (const int column = (row + step) % shape.gpus(); shape.reaches(row, column)) others.push_back(column);
      for (const int column : others) {
        cell_target target = target_at(0, row, column);
        target.transfer = run.transfers.size();
        target.same_direction = static_cast<unsigned>(others.size());
        target.through_one_link = true;
        target.opposite_too = true;
        run.transfers.push_back(transfer(row, column, false, others.size()));
        run.targets.push_back(target);
      }
    }
    cell_target target = target_at(1, 0, 0);
    target.rate_kind = cell_target::rate::total;
    target.has_expectation = false;
    run.targets.push_back(target);
    plan.runs.push_back(std::move(run));
  }

  void plan_staged(case_plan& plan) const {
    plan.matrices.push_back(pair_matrix("", "memcpy CE GPU(row) -> host -> GPU(column) bandwidth (GB/s)"));
    for (int row = 0; row < shape.gpus(); ++row)
      for (int column = 0; column < shape.gpus(); ++column) {
        if (row == column) continue;
        cell_run run;
        run.name = format("GPU %d, GPU %d", row, column);
        run.without_peer_access = true;
        run.transfers.push_back(transfer(row, column, false, 1));
        cell_target target = target_at(0, row, column);
        target.has_expectation = false;
        run.targets.push_back(target);
        plan.runs.push_back(std::move(run));
      }
  }
};

}  // namespace

case_plan plan_peer_case(int index, const machine_shape& shape, const test_options& options) {
  const peer_planner planner{index, peer_case_of(index), shape, options};
  case_plan plan;
  if (planner.spec.shape == shape_of_case::staged ? shape.gpus() < 2 : !shape.has_peers()) {
    plan.waived =
        shape.gpus() < 2
            ? format("needs two GPUs, %d %s visible", shape.gpus(), shape.gpus() == 1 ? "is" : "are")
            : format("none of the %d GPUs has peer access to another (nvidia-smi topo -p2p r says why)", shape.gpus());
    return plan;
  }
  if (planner.spec.kind == executor_kind::tma && !shape.has_bulk_copies()) {
    plan.waived = kNoBulkCopies;
    return plan;
  }
  switch (planner.spec.shape) {
    case shape_of_case::pair:
      planner.plan_pairs(plan);
      break;
    case shape_of_case::pair_both:
      planner.plan_pairs_both(plan);
      break;
    case shape_of_case::all_to_one:
    case shape_of_case::one_to_all:
      planner.plan_fan(plan);
      break;
    case shape_of_case::all_to_all:
      planner.plan_all_to_all(plan);
      break;
    case shape_of_case::staged:
      planner.plan_staged(plan);
      break;
  }
  return plan;
}

}  // namespace pl::bandwidth
