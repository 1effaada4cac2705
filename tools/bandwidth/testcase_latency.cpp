// SPDX-License-Identifier: Apache-2.0
// Latency testcases: 32, 33, and ours. A cell's samples are single accesses.
#include "base/text.hpp"
#include "tools/bandwidth/case_plan.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kListBytes = 2u << 20;  // the original's; fits every L2
constexpr std::uint64_t kLongHostListBytes = 64u << 20;
constexpr std::uint64_t kBarAccesses = 20'000;

matrix latency_matrix(std::string title, std::vector<std::string> rows, const machine_shape& shape) {
  matrix out = make_matrix("", std::move(title), std::move(rows), gpu_labels(shape.gpus()));
  out.unit = "ns";
  return out;
}

transfer_path path_of(place list, int gpu, executor_kind engine_kind, std::uint64_t bytes) {
  transfer_path path;
  path.measured_quantity = transfer_path::quantity::latency;
  path.source = list;
  path.destination = gpu_place(gpu);
  path.executor = {engine_kind, gpu, 1};
  path.bytes = bytes;
  return path;
}

cell_run chase(int gpu, place list, std::uint64_t bytes, const test_options& options, cell_target target,
               executor_kind engine_kind = executor_kind::sm) {
  chase_spec spec;
  spec.gpu = gpu;
  spec.list = list;
  spec.bytes = bytes;
  spec.seed = options.settings.seed;
  spec.sequential = options.original_mistakes;
  spec.by_bulk_copies = engine_kind == executor_kind::tma;
  cell_run run;
  run.name = format("GPU %d, list in %s", gpu, to_string(list).c_str());
  run.latency = [spec](test_context& context) { return run_chase(context.gpus, context.pool, spec); };
  run.latency_path = path_of(list, gpu, engine_kind, bytes);
  run.targets.push_back(target);
  return run;
}

case_plan plan_pairs(executor_kind engine_kind, const machine_shape& shape, const test_options& options) {
  case_plan plan;
  if (!shape.has_peers()) {
    plan.waived = shape.gpus() < 2 ? format("needs two GPUs, %d %s visible", shape.gpus(), shape.gpus() == 1 ? "is" : "are")
                                   : format("no two of the %d GPUs have peer access", shape.gpus());
    return plan;
  }
  if (engine_kind == executor_kind::tma && !shape.has_bulk_copies()) {
    plan.waived = kNoBulkCopies;
    return plan;
  }
  plan.matrices.push_back(
      latency_matrix(format("Device to Device Latency %s GPU(row) <-> GPU(column) (ns)", to_string(engine_kind)),
                     gpu_labels(shape.gpus()), shape));
  plan.matrices[0].row_label = "GPU";
  for (int row = 0; row < shape.gpus(); ++row)
    for (int column = 0; column < shape.gpus(); ++column) {
      const auto r = static_cast<std::size_t>(row), c = static_cast<std::size_t>(column);
      plan.matrices[0].cells[r][c].reason =
          row == column ? "a pair needs two GPUs" : format("no peer access between GPU %d and GPU %d", row, column);
      if (!shape.reaches(row, column)) continue;
      if (options.pairs.includes(row, column) && (engine_kind != executor_kind::tma || shape.bulk_copies[r]))
        plan.runs.push_back(chase(row, gpu_place(column), kListBytes, options, {.row = r, .column = c}, engine_kind));
      else plan.matrices[0].cells[r][c].reason = kNotChosen;
    }
  return plan;
}

case_plan plan_chases(int index, const machine_shape& shape, const test_options& options) {
  case_plan plan;
  const bool in_host = index == 32 || index == 61;
  const std::uint64_t bytes = index == 61 ? kLongHostListBytes : index == 60 ? options.long_list_bytes : kListBytes;
  const char* title = index == 59   ? "memory latency SM L2 of GPU(column) (ns)"
                      : index == 60 ? "memory latency SM memory of GPU(column) (ns)"
                                    : "memory latency SM CPU(row) <-> GPU(column) (ns)";
  plan.matrices.push_back(latency_matrix(title, {"0"}, shape));
  if (!in_host) plan.matrices[0].row_label = "GPU";
  for (int gpu = 0; gpu < shape.gpus(); ++gpu) {
    const place list = in_host ? host_place(options.host, options.numa_node) : gpu_place(gpu);
    plan.runs.push_back(chase(gpu, list, bytes, options, {.column = static_cast<std::size_t>(gpu)}));
  }
  return plan;
}

case_plan plan_bar(int index, const machine_shape& shape) {
  using measurement = result<latency_outcome> (*)(gpu_set&, buffer_pool&, int, std::uint64_t);
  const measurement measure = index == 56 ? run_bar_load : index == 57 ? run_bar_store : run_bar_round_trip;
  const char* description = index == 56 ? "load" : index == 57 ? "store" : "round trip";
  case_plan plan;
  plan.matrices.push_back(
      latency_matrix(format("BAR1 %s latency CPU(row) <-> GPU(column) (ns)", description), {"0"}, shape));
  for (int gpu = 0; gpu < shape.gpus(); ++gpu) {
    cell_run run;
    run.name = format("GPU %d", gpu);
    run.latency = [measure, gpu](test_context& context) { return measure(context.gpus, context.pool, gpu, kBarAccesses); };
    run.latency_path = path_of(host_place(), gpu, executor_kind::bar, 8);
    if (index == 56) std::swap(run.latency_path.source, run.latency_path.destination);
    cell_target target;
    target.column = static_cast<std::size_t>(gpu);
    target.has_expectation = index != 58;  // the model knows single accesses, no round trips
    run.targets.push_back(target);
    plan.runs.push_back(std::move(run));
  }
  return plan;
}

}  // namespace

case_plan plan_latency_case(int index, const machine_shape& shape, const test_options& options) {
  if (index == 33) return plan_pairs(executor_kind::sm, shape, options);
  if (index == 77) return plan_pairs(executor_kind::tma, shape, options);
  if (index >= 56 && index <= 58) return plan_bar(index, shape);
  return plan_chases(index, shape, options);
}

}  // namespace pl::bandwidth
