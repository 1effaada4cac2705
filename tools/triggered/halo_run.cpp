// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/halo_run.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "measure/progress.hpp"
#include "tools/common/tool.hpp"
#include "tools/triggered/cpu_use.hpp"

namespace pl::async {
namespace {

constexpr std::uint64_t kMaxUpdates = 1ull << 33;     // updated points in a repetition
constexpr std::uint64_t kMaxReference = 200'000'000;  // points that the CPU computes to check a size
constexpr std::uint64_t kCheckedEachTurn = 32u
                                           << 20;  // bytes of a field; larger ones are compared after the last repetition

struct halo_samples {
  std::vector<double> step_ns, enqueue_ns, busy_percent;
};

double median_of(const std::vector<double>& values) { return summarize(values).p50; }

std::size_t wrong_points(const std::vector<double>& is, const std::vector<double>& should_be) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < is.size(); ++i) wrong += std::memcmp(&is[i], &should_be[i], sizeof(double)) != 0;
  return wrong;
}

// One size of block. Counts in periods, reports in steps.
class size_run {
 public:
  size_run(bench_rank& session, const halo_plan& plan, int n, std::vector<std::unique_ptr<halo_method>>& ways,
           result_file* file)
      : session_(session),
        plan_(plan),
        n_(n),
        problem_(plan.make(session, {plan.gx, plan.gy, session.rank(), n})),
        ways_(ways),
        file_(file) {
    const int asked = std::max(1, plan.steps / problem_->steps_of_period());
    periods_ = static_cast<int>(
        std::clamp<std::uint64_t>(kMaxUpdates / problem_->updates_of_period(), 1, static_cast<std::uint64_t>(asked)));
    batch_ = std::max(1, plan.batch / problem_->steps_of_period());
    checked_ = periods_to_check();
  }
  // Before the problem's memory goes.
  ~size_run() {
    for (auto& each : ways_) each->forget();
  }
  size_run(const size_run&) = delete;
  size_run& operator=(const size_run&) = delete;

  std::size_t all() {
    problem_->reset();
    kernel_ns_ = session_.time_on_gpu(std::min(periods_, 50), [&] { problem_->launch_period([](const halo&) {}); });
    const auto reference = problem_->reference(checked_);
    halo_samples unused;
    for (std::size_t index = 0; index < ways_.size(); ++index) {
      take_turn(index, checked_, unused);
      compare(index, checked_, reference, "the CPU's");
    }
    if (checked_ == periods_) expected_ = reference;
    std::vector<halo_samples> all(ways_.size());
    std::optional<progress> line;
    if (session_.rank() == 0) line.emplace(plan_.title, static_cast<std::size_t>(plan_.repeats) * ways_.size());
    std::size_t done = 0;
    for (int repeat = 0; repeat < plan_.repeats; ++repeat)
      for (std::size_t i = 0; i < ways_.size(); ++i) {
        const std::size_t index = (i + static_cast<std::size_t>(repeat)) % ways_.size();
        if (line) line->start_step(done++, format("%d points, %s", n_, to_string(plan_.arms[index])));
        take_turn(index, periods_, all[index]);
        const auto field_bytes = sizeof(double) * static_cast<std::size_t>(n_) * static_cast<std::size_t>(n_);
        if (repeat + 1 == plan_.repeats || field_bytes <= kCheckedEachTurn) compare_timed(index);
      }
    line.reset();
    if (session_.rank() == 0) print_results(all);
    return wrong_;
  }

 private:
  // As many as the CPU can compute in good time, at least one; the same on every rank.
  int periods_to_check() const {
    int enough = 1, too_many = periods_ + 1;
    while (too_many - enough > 1) {
      const int middle = enough + (too_many - enough) / 2;
      (problem_->reference_work(middle) <= kMaxReference ? enough : too_many) = middle;
    }
    return enough;
  }

  void take_turn(std::size_t index, int periods, halo_samples& results) {
    auto& way = *ways_[index];
    const halo_period period = [&] { problem_->launch_period([&](const halo& halo_edges) { way.exchange(halo_edges); }); };
    problem_->reset();
    for (const int count : {std::min(batch_, periods), periods % batch_})
      if (count != 0) way.prepare(count, period);
    session_.barrier();
    way.enqueue_ns = 0;
    const auto before = cpu_use::now();
    const auto begin = monotonic_ns();
    for (int done = 0; done < periods; done += batch_) way.advance(std::min(batch_, periods - done), period);
    way.finish();
    const auto taken_ns = static_cast<double>(monotonic_ns() - begin);
    const auto after = cpu_use::now();
    session_.barrier();  // no edges of a neighbour are in transit any more
    const double steps = to_steps(periods);
    results.step_ns.push_back(taken_ns / steps);
    results.enqueue_ns.push_back(static_cast<double>(way.enqueue_ns) / steps);
    results.busy_percent.push_back((after.seconds - before.seconds) / (taken_ns * 1e-9) * 100);
  }

  int to_steps(int periods) const { return periods * problem_->steps_of_period(); }

  // Sizes of which the CPU computes fewer steps: what the first arm found, whose first steps are known to be right.
  void compare_timed(std::size_t index) {
    if (expected_.empty()) expected_ = problem_->field();
    else compare(index, periods_, expected_, checked_ == periods_ ? "the CPU's" : "another arm's");
  }

  void compare(std::size_t index, int periods, const std::vector<double>& expected, const char* label) {
    const auto wrong = wrong_points(problem_->field(), expected);
    wrong_ += wrong;
    if (wrong != 0)
      std::fprintf(stderr, "%s, %d x %d: %zu points of rank %d differ from %s after %d %ss\n", to_string(plan_.arms[index]),
                   n_, n_, wrong, session_.rank(), label, to_steps(periods), plan_.step.c_str());
  }

  void print_results(const std::vector<halo_samples>& all) const {
    const auto edge_bytes = sizeof(double) * static_cast<std::size_t>(n_);
    const double kernel_ns = kernel_ns_ / problem_->steps_of_period();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const char* const name = to_string(plan_.arms[i]);
      const double step_ns = median_of(all[i].step_ns), ratio = step_ns / median_of(all[0].step_ns);
      std::printf("%6d %10zu %7d %8d %10.2f  %-12s %10.2f %7.3f %7.1f %11.2f\n", n_, edge_bytes, to_steps(periods_),
                  to_steps(checked_), kernel_ns * 1e-3, name, step_ns * 1e-3, ratio, median_of(all[i].busy_percent),
                  median_of(all[i].enqueue_ns) * 1e-3);
      if (file_ == nullptr) continue;
      const auto series = format("%s %d", name, n_);
      file_->add_samples(series, all[i].step_ns);
      file_->add_row({{"series", series},
                      {"arm", name},
                      {"n", n_},
                      {"grid", format("%dx%d", plan_.gx, plan_.gy)},
                      {"edge_bytes", edge_bytes},
                      {plan_.step + "s", to_steps(periods_)},
                      {plan_.step + "s_checked_by_cpu", to_steps(checked_)},
                      {"kernel_ns", kernel_ns},
                      {plan_.step + "_ns_p50", step_ns},
                      {"enqueue_ns_p50", median_of(all[i].enqueue_ns)},
                      {"cpu_busy_percent_p50", median_of(all[i].busy_percent)},
                      {"ratio_to_first", ratio}});
    }
  }

  bench_rank& session_;
  const halo_plan& plan_;
  const int n_;
  const std::unique_ptr<halo_problem> problem_;
  std::vector<std::unique_ptr<halo_method>>& ways_;
  result_file* file_;
  int periods_ = 0, batch_ = 0, checked_ = 0;
  double kernel_ns_ = 0;  // of a period
  std::vector<double> expected_;
  std::size_t wrong_ = 0;
};

}  // namespace

int run_halos(bench_rank& session, const halo_plan& plan, result_file* file) {
  std::vector<std::unique_ptr<halo_method>> ways;
  for (const arm kind : plan.arms) ways.push_back(make_halo_method(session, {plan.gx, plan.gy, session.rank(), 0}, kind));
  if (session.rank() == 0) {
    const auto* const step = plan.step.c_str();
    std::printf(
        "# %s on a grid of %dx%d ranks, up to %d %ss a repetition, %d repetitions of each arm, interleaved; medians of rank "
        "0\n",
        plan.title.c_str(), plan.gx, plan.gy, plan.steps, step, plan.repeats);
    std::printf("# every field is compared with the CPU's after `checked` %ss, and the arms' with each other\n", step);
    std::printf("%6s %10s %6ss %8s %10s  %-12s %10s %7s %7s %11s\n", "n", "edge bytes", step, "checked", "kernel us", "arm",
                format("us/%s", step).c_str(), "ratio", "CPU %", "enqueue us");
  }
  std::size_t wrong = 0;
  for (const int n : plan.sizes) {
    session.barrier();
    wrong += size_run(session, plan, n, ways, file).all();
  }
  if (file != nullptr && wrong != 0) file->set_pass(false);
  return wrong == 0 ? tools::kExitOk : tools::kExitFailed;
}

}  // namespace pl::async
