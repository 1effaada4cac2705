// SPDX-License-Identifier: Apache-2.0
#include "stencil.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "clock.hpp"
#include "cpu_use.hpp"
#include "statistics.hpp"
#include "stencil_ways.hpp"
#include "text.hpp"
#include "tool.hpp"

namespace pl::async {
namespace {

constexpr std::uint64_t kMostUpdates = 1ull << 33;     // points of a turn
constexpr std::uint64_t kMostReference = 200'000'000;  // points that the CPU computes to check a size
constexpr std::uint64_t kCheckedEachTurn = 32u << 20;  // bytes of a field; larger ones are looked at after the last turn

struct samples {
  std::vector<double> step_ns, enqueue_ns, busy_percent;
};

double middle(const std::vector<double>& of) { return summarize(of).p50; }

std::size_t wrong_points(const std::vector<double>& is, const std::vector<double>& should_be) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < is.size(); ++i) wrong += std::memcmp(&is[i], &should_be[i], sizeof(double)) != 0;
  return wrong;
}

// One size of block.
class run {
 public:
  run(station& at, const stencil_plan& plan, int n, std::vector<std::unique_ptr<stencil_way>>& ways, result_file* file)
      : at_(at), plan_(plan), place_{plan.gx, plan.gy, at.rank(), n}, block_(at, place_), ways_(ways), file_(file) {
    const auto points = static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(n);
    steps_ = static_cast<int>(std::clamp<std::uint64_t>(kMostUpdates / points, 1, static_cast<std::uint64_t>(plan.steps)));
    checked_steps_ = steps_to_check();
  }

  std::size_t all() {
    block_.reset();
    std::uint64_t step = 0;
    kernel_ns_ = at_.time_on_gpu(std::min(steps_, 100), [&] { block_.launch(++step); });
    const auto reference = block_after(place_, checked_steps_);
    samples unused;
    for (std::size_t which = 0; which < ways_.size(); ++which) {
      take_turn(which, checked_steps_, unused);
      compare(which, checked_steps_, reference, "the CPU's");
    }
    if (checked_steps_ == steps_) expected_ = reference;
    std::vector<samples> all(ways_.size());
    for (int repeat = 0; repeat < plan_.repeats; ++repeat)
      for (std::size_t i = 0; i < ways_.size(); ++i) {
        const std::size_t which = (i + static_cast<std::size_t>(repeat)) % ways_.size();
        take_turn(which, steps_, all[which]);
        if (repeat + 1 == plan_.repeats || block_.edge_bytes() * static_cast<std::size_t>(place_.n) <= kCheckedEachTurn)
          compare_timed(which);
      }
    if (at_.rank() == 0) tell(all);
    return wrong_;
  }

 private:
  // As many as the CPU can compute in good time, at least 2 where so many are made; the same on every rank.
  int steps_to_check() const {
    int enough = std::min(steps_, 2), too_many = steps_ + 1;
    while (too_many - enough > 1) {
      const int middle = enough + (too_many - enough) / 2;
      std::uint64_t most = 0;
      for (int rank = 0; rank < plan_.gx * plan_.gy; ++rank)
        most = std::max(most, reference_work({plan_.gx, plan_.gy, rank, place_.n}, middle));
      (most <= kMostReference ? enough : too_many) = middle;
    }
    return enough;
  }

  void take_turn(std::size_t which, int steps, samples& into) {
    auto& by = *ways_[which];
    block_.reset();
    at_.barrier();
    by.enqueue_ns = 0;
    const auto before = cpu_use::now();
    const auto begin = monotonic_ns();
    for (int done = 0; done < steps; done += plan_.batch)
      by.advance(block_, static_cast<std::uint64_t>(done) + 1, std::min(plan_.batch, steps - done));
    by.finish();
    const auto taken_ns = static_cast<double>(monotonic_ns() - begin);
    const auto after = cpu_use::now();
    at_.barrier();  // no neighbour's edges are under way any more
    into.step_ns.push_back(taken_ns / steps);
    into.enqueue_ns.push_back(static_cast<double>(by.enqueue_ns) / steps);
    into.busy_percent.push_back((after.seconds - before.seconds) / (taken_ns * 1e-9) * 100);
  }

  // Sizes of which the CPU computes fewer steps: what the first arm found, whose first steps are known to be right.
  void compare_timed(std::size_t which) {
    if (expected_.empty()) expected_ = block_.field(static_cast<std::uint64_t>(steps_));
    else compare(which, steps_, expected_, checked_steps_ == steps_ ? "the CPU's" : "another arm's");
  }

  void compare(std::size_t which, int steps, const std::vector<double>& with, const char* whose) {
    const auto wrong = wrong_points(block_.field(static_cast<std::uint64_t>(steps)), with);
    wrong_ += wrong;
    if (wrong != 0)
      std::fprintf(stderr, "%s, %d x %d: %zu points of rank %d differ from %s after %d steps\n",
                   to_string(plan_.arms[which]), place_.n, place_.n, wrong, at_.rank(), whose, steps);
  }

  void tell(const std::vector<samples>& all) const {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const char* const name = to_string(plan_.arms[i]);
      const double step_ns = middle(all[i].step_ns), ratio = step_ns / middle(all[0].step_ns);
      std::printf("%6d %10zu %7d %8d %10.2f  %-12s %10.2f %7.3f %7.1f %11.2f\n", place_.n, block_.edge_bytes(), steps_,
                  checked_steps_, kernel_ns_ * 1e-3, name, step_ns * 1e-3, ratio, middle(all[i].busy_percent),
                  middle(all[i].enqueue_ns) * 1e-3);
      if (file_ == nullptr) continue;
      const auto series = format("%s %d", name, place_.n);
      file_->add_samples(series, all[i].step_ns);
      file_->add_row({{"series", series},
                      {"arm", name},
                      {"n", place_.n},
                      {"grid", format("%dx%d", plan_.gx, plan_.gy)},
                      {"edge_bytes", block_.edge_bytes()},
                      {"steps", steps_},
                      {"steps_checked_by_cpu", checked_steps_},
                      {"kernel_ns", kernel_ns_},
                      {"step_ns_p50", step_ns},
                      {"enqueue_ns_p50", middle(all[i].enqueue_ns)},
                      {"cpu_busy_percent_p50", middle(all[i].busy_percent)},
                      {"ratio_to_first", ratio}});
    }
  }

  station& at_;
  const stencil_plan& plan_;
  const block_place place_;
  gpu_block block_;
  std::vector<std::unique_ptr<stencil_way>>& ways_;
  result_file* file_;
  int steps_ = 0, checked_steps_ = 0;
  double kernel_ns_ = 0;
  std::vector<double> expected_;
  std::size_t wrong_ = 0;
};

}  // namespace

int run_stencil(station& at, const stencil_plan& plan, result_file* file) {
  std::vector<std::unique_ptr<stencil_way>> ways;
  for (const arm which : plan.arms) ways.push_back(make_stencil_way(at, {plan.gx, plan.gy, at.rank(), 0}, which));
  if (at.rank() == 0) {
    std::printf(
        "# 5-point Jacobi on a grid of %dx%d ranks, up to %d steps a turn, %d turns of each arm, interleaved; medians "
        "of rank 0's turns\n",
        plan.gx, plan.gy, plan.steps, plan.repeats);
    std::printf("# every field is compared with the CPU's after `checked` steps, and the arms' with each other\n");
    std::printf("%6s %10s %7s %8s %10s  %-12s %10s %7s %7s %11s\n", "n", "edge bytes", "steps", "checked", "kernel us",
                "arm", "us/step", "ratio", "CPU %", "enqueue us");
  }
  std::size_t wrong = 0;
  for (const int n : plan.sizes) {
    at.barrier();
    wrong += run(at, plan, n, ways, file).all();
  }
  if (file != nullptr && wrong != 0) file->set_pass(false);
  return wrong == 0 ? tools::kExitOk : tools::kExitFailed;
}

}  // namespace pl::async
