// SPDX-License-Identifier: Apache-2.0
// Testcases between host and device memory: 0-3, 8-11, 16-19, 24-27, and ours by BAR1, engine and DMA channel.
#include <algorithm>
#include <array>

#include "base/text.hpp"
#include "tools/bandwidth/case_plan.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kUnlimited = ~0ull;

struct host_case {
  int index;
  executor_kind kind;
  bool to_device;  // the direction of the main result
  bool both;       // the other direction runs too
  bool all;        // every GPU at once
  std::uint64_t most_bytes = kUnlimited;
  unsigned block_kib = 0;  // of scattered blocks; 0: one piece
};

using enum executor_kind;
constexpr unsigned kEngineWorkers = 4;
constexpr std::uint64_t kMaxScatteredBytes = 256u << 20;  // 65536 blocks of 4 KiB
constexpr std::array kHostCases = {
    host_case{0, ce, true, false, false},
    host_case{1, ce, false, false, false},
    host_case{2, ce, true, true, false},
    host_case{3, ce, false, true, false},
    host_case{8, ce, false, false, true},
    host_case{9, ce, false, true, true},
    host_case{10, ce, true, false, true},
    host_case{11, ce, true, true, true},
    host_case{16, sm, true, false, false},
    host_case{17, sm, false, false, false},
    host_case{18, sm, true, true, false},
    host_case{19, sm, false, true, false},
    host_case{24, sm, false, false, true},
    host_case{25, sm, false, true, true},
    host_case{26, sm, true, false, true},
    host_case{27, sm, true, true, true},
    // BAR1 may be 256 MiB in all; CPU loads through it move about 1 GB/s, so larger ones only take longer.
    host_case{48, bar, true, false, false, 64u << 20},
    host_case{49, bar, false, false, false, 4u << 20},
    // A worker of the engine takes 4 MiB at a time, and four are what a copy may have.
    host_case{50, engine, true, false, false, kEngineWorkers*(4u << 20)},
    host_case{51, engine, false, false, false, kEngineWorkers*(4u << 20)},
    host_case{62, dma, true, false, false},
    host_case{63, dma, false, false, false},
    host_case{64, dma, true, true, false},
    host_case{65, dma, true, false, false, kMaxScatteredBytes, 4},
    host_case{66, dma, true, false, false, kMaxScatteredBytes, 16},
    host_case{67, dma, true, false, false, kMaxScatteredBytes, 64},
    host_case{68, dma, false, false, false, kMaxScatteredBytes, 4},
    host_case{69, dma, false, false, false, kMaxScatteredBytes, 16},
    host_case{70, dma, false, false, false, kMaxScatteredBytes, 64},
};

const host_case& host_case_of(int index) {
  return *std::find_if(kHostCases.begin(), kHostCases.end(), [index](const host_case& one) { return one.index == index; });
}

struct host_planner {
  const host_case& spec;
  const machine_shape& shape;
  const test_options& options;

  std::uint64_t bytes() const { return std::min(options.bytes, spec.most_bytes); }
  // Both directions on every multiprocessor keep the link busier than each on half of them (docs/bandwidth-testcases.md). A
  // budget of multiprocessors is for both together.
  bool divides() const { return spec.both && (options.sm_count != 0 || !shape.kernels_share); }

  transfer_spec transfer(int gpu, bool to_device) const {
    const place host = host_place(options.host, options.numa_node);
    transfer_spec out{host, gpu_place(gpu), {spec.kind, gpu, 0}, bytes()};
    if (!to_device) std::swap(out.source, out.destination);
    if (spec.kind == sm) out.executor.width = share_of_multiprocessors(shape, options, gpu, divides() ? 2 : 1);
    if (spec.kind == bar) out.executor.width = options.threads;
    if (spec.kind == engine) out.executor.width = kEngineWorkers;
    if (spec.kind == dma) out.executor.width = spec.block_kib;
    return out;
  }

  std::string title(const char* suffix) const {
    const char* arrow = spec.both ? "<->" : spec.to_device ? "->" : "<-";
    const std::string blocks = spec.block_kib != 0 ? format("scattered blocks of %u KiB, ", spec.block_kib) : "";
    return format("memcpy %s CPU(row) %s GPU(column) %s%sbandwidth (GB/s)", to_string(spec.kind), arrow, blocks.c_str(),
                  suffix);
  }

  // The main result, and figures that the original leaves out.
  void add_matrices(case_plan& plan) const {
    const auto labels = gpu_labels(shape.gpus());
    plan.matrices.push_back(make_matrix("", title(""), {"0"}, labels));
    if (options.original_mistakes) return;
    if (spec.both) {
      const std::string arrow = spec.to_device ? "<-" : "->";
      plan.matrices.push_back(make_matrix(
          "opposite",
          format("memcpy %s CPU(row) %s GPU(column) beside it, bandwidth (GB/s)", to_string(spec.kind), arrow.c_str()),
          {"0"}, labels));
    }
    if (spec.all) plan.matrices.push_back(make_matrix("total", title("total of all GPUs, "), {"0"}, {"all"}));
    else if (spec.both) plan.matrices.push_back(make_matrix("total", title("total, "), {"0"}, labels));
    for (std::size_t i = 1; i < plan.matrices.size(); ++i) plan.matrices[i].is_native_only = true;
  }

  void add_gpu(cell_run& run, int gpu) const {
    const auto column = static_cast<std::size_t>(gpu);
    const std::size_t first = run.transfers.size();
    run.transfers.push_back(transfer(gpu, spec.to_device));
    run.targets.push_back({.transfer = first, .matrix = 0, .column = column, .opposite_too = spec.both});
    if (!spec.both) return;
    run.transfers.push_back(transfer(gpu, !spec.to_device));
    run.targets.push_back({.transfer = first + 1, .matrix = 1, .column = column, .opposite_too = true});
    if (!spec.all)
      run.targets.push_back(
          {.rate_kind = cell_target::rate::total, .transfer = first, .matrix = 2, .column = column, .opposite_too = true});
  }

  void plan_each(case_plan& plan) const {
    for (int gpu = 0; gpu < shape.gpus(); ++gpu) {
      cell_run run;
      run.name = format("GPU %d", gpu);
      add_gpu(run, gpu);
      plan.runs.push_back(std::move(run));
    }
  }

  // One run measures all GPUs: the traffic is balanced, so each rate is measured while all others run.
  void plan_all(case_plan& plan) const {
    cell_run run;
    run.name = "all GPUs";
    for (int gpu = 0; gpu < shape.gpus(); ++gpu) add_gpu(run, gpu);
    run.targets.push_back({.rate_kind = cell_target::rate::total,
                           .matrix = plan.matrices.size() - 1,
                           .opposite_too = spec.both,
                           .has_expectation = false});
    plan.runs.push_back(std::move(run));
  }

  // The original's way: for each GPU a run of its own in which everything but one copy interferes with twice the bytes; by
  // kernels, both directions count and half of their sum is reported as one direction.
  void plan_original(case_plan& plan) const {
    const bool half_of_both = spec.both && spec.kind == sm;
    for (int gpu = 0; gpu < shape.gpus(); ++gpu) {
      cell_run run;
      run.name = format("GPU %d", gpu);
      run.transfers.push_back(transfer(gpu, half_of_both || spec.to_device));
      if (spec.both) run.transfers.push_back(transfer(gpu, !half_of_both && !spec.to_device));
      for (int other = 0; spec.all && other < shape.gpus(); ++other) {
        if (other == gpu) continue;
        run.transfers.push_back(transfer(other, spec.to_device));
        if (spec.both) run.transfers.push_back(transfer(other, !spec.to_device));
      }
      for (std::size_t i = 1; i < run.transfers.size(); ++i) {
        run.transfers[i].measured = half_of_both && i == 1;
        if (!half_of_both) run.transfers[i].bytes *= 2;
      }
      run.targets.push_back({.rate_kind = half_of_both ? cell_target::rate::half_of_total : cell_target::rate::own,
                             .column = static_cast<std::size_t>(gpu),
                             .opposite_too = spec.both,
                             .has_expectation = !half_of_both});
      plan.runs.push_back(std::move(run));
    }
  }
};

}  // namespace

case_plan plan_host_case(int index, const machine_shape& shape, const test_options& options) {
  case_plan plan;
  const host_planner planner{host_case_of(index), shape, options};
  planner.add_matrices(plan);
  if (options.original_mistakes && (planner.spec.both || planner.spec.all)) planner.plan_original(plan);
  else if (planner.spec.all) planner.plan_all(plan);
  else planner.plan_each(plan);
  return plan;
}

}  // namespace pl::bandwidth
