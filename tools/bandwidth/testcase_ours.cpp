// SPDX-License-Identifier: Apache-2.0
// Copies within one GPU (34 and ours), and the choice of the planner by number.
#include "base/text.hpp"
#include "tools/bandwidth/case_plan.hpp"

namespace pl::bandwidth {

namespace {

struct local_case {
  executor_kind kind;
  const char* title;
};

local_case local_case_of(int index) {
  using enum executor_kind;
  switch (index) {
    case 52:
      return {sm, "memcpy local SM GPU(column) bandwidth (GB/s)"};
    case 75:
      return {sm_read, "read local SM GPU(column) bandwidth (GB/s)"};
    case 76:
      return {sm_write, "write local SM GPU(column) bandwidth (GB/s)"};
    case 78:
      return {tma, "memcpy local TMA GPU(column) bandwidth (GB/s)"};
    default:
      return {ce, "memcpy local GPU(column) bandwidth (GB/s)"};
  }
}

}  // namespace

case_plan plan_local_case(int index, const machine_shape& shape, const test_options& options) {
  const local_case spec = local_case_of(index);
  case_plan plan;
  if (spec.kind == executor_kind::tma && !shape.has_bulk_copies()) {
    plan.waived = kNoBulkCopies;
    return plan;
  }
  plan.matrices.push_back(make_matrix("", spec.title, {"0"}, gpu_labels(shape.gpus())));
  plan.matrices[0].row_label = "GPU";
  for (int gpu = 0; gpu < shape.gpus(); ++gpu) {
    cell_run run;
    run.name = format("GPU %d", gpu);
    transfer_spec copy{gpu_place(gpu), gpu_place(gpu), {spec.kind, gpu, 0}, options.bytes};
    if (is_kernel(spec.kind)) copy.executor.width = share_of_multiprocessors(shape, options, gpu, 1);
    run.transfers.push_back(copy);
    run.targets.push_back({.column = static_cast<std::size_t>(gpu)});
    plan.runs.push_back(std::move(run));
  }
  return plan;
}

case_plan plan_of(int index, const machine_shape& shape, const test_options& options) {
  switch (index) {
    case 32:
    case 33:
    case 77:
    case 56:
    case 57:
    case 58:
    case 59:
    case 60:
    case 61:
      return plan_latency_case(index, shape, options);
    case 34:
    case 52:
    case 75:
    case 76:
    case 78:
      return plan_local_case(index, shape, options);
    case 53:
    case 54:
    case 55:
    case 71:
    case 72:
    case 73:
    case 74:
      return plan_peer_case(index, shape, options);
    default:
      break;
  }
  // Tests of kernels have numbers 16 above those of copy engines.
  const int at_ce = index >= 16 && index < 32 ? index - 16 : index;
  const bool between_gpus = (at_ce >= 4 && at_ce <= 7) || (at_ce >= 12 && at_ce <= 15);
  return between_gpus ? plan_peer_case(index, shape, options) : plan_host_case(index, shape, options);
}

}  // namespace pl::bandwidth
