// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/pingpong.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "measure/progress.hpp"
#include "tools/common/tool.hpp"
#include "tools/triggered/cpu_use.hpp"

namespace pl::async {
namespace {

constexpr std::uint64_t kStart = 1000;  // first value of every word

struct samples {
  std::vector<double> iteration_ns, enqueue_ns, busy_percent, switches_per_s;
};

double middle(const std::vector<double>& values) { return summarize(values).p50; }
double tail(const std::vector<double>& values) { return summarize(values).p99; }

class run {
 public:
  run(bench_rank& session, const pingpong_plan& plan, result_file* file) : session_(session), plan_(plan), file_(file) {
    for (const auto& candidate : plan.contenders) add(candidate);
  }

  int all() {
    if (ways_.empty()) return tools::kExitFailed;
    if (session_.rank() == 0) print_header();
    for (const auto kernel : plan_.kernel_ns)
      for (const auto size : plan_.sizes) one(size, kernel);
    if (file_ != nullptr && wrong_ != 0) file_->set_pass(false);
    return wrong_ == 0 ? tools::kExitOk : tools::kExitFailed;
  }

 private:
  struct way {
    contender setup;
    std::string name;
    std::unique_ptr<exchange> runner;
  };

  void add(const contender& candidate) {
    std::string name = to_string(candidate.kind);
    if (plan_.has_modes) name += candidate.mode == triggered::run_mode::economy ? " economy" : " performance";
    auto runner = make_exchange(session_, candidate, plan_.unroll != 0 ? plan_.unroll : plan_.batch);
    const auto ready = runner->prepare(plan_.sizes.front(), 0);
    if (!ready && ready.code() != ENOTSUP) tools::must(ready);
    // What one rank lacks is left out on both: the other one would wait for an exchange that never begins.
    const auto reasons = session_.gather(ready ? std::string() : ready.error().message);
    const auto lacking = std::find_if(reasons.begin(), reasons.end(), [](const auto& reason) { return !reason.empty(); });
    if (lacking == reasons.end()) return ways_.push_back({candidate, name, std::move(runner)});
    const auto words =
        format("%s is left out: rank %d: %s", name.c_str(), static_cast<int>(lacking - reasons.begin()), lacking->c_str());
    if (session_.rank() == 0) std::fprintf(stderr, "%s\n", words.c_str());
    if (file_ != nullptr) file_->add_note(words);
  }

  void print_header() const {
    std::printf(
        "# ping-pong: %d iterations, %d queued at once, in %d repetitions, interleaved; medians of the repetitions on rank "
        "0\n",
        plan_.iterations, plan_.batch, plan_.repeats);
    std::printf(
        "# us: per round trip, with two kernels; CPU: of one core, all threads; sleeps: voluntary context switches\n");
    std::printf("%9s %12s %11s  %-18s %10s %7s %8s %9s %11s\n", "bytes", "kernel asked", "kernel took", "arm", "us", "ratio",
                "CPU %", "sleeps/s", "enqueue us");
  }

  void one(std::size_t bytes, std::uint64_t busy_ns) {
    const double kernel_ns = time_kernel(bytes, busy_ns);
    for (auto& each : ways_) tools::must(each.runner->prepare(bytes, busy_ns));
    std::vector<samples> all(ways_.size());
    std::optional<progress> line;
    if (session_.rank() == 0) line.emplace("ping-pong", static_cast<std::size_t>(plan_.repeats + 1) * ways_.size());
    std::size_t done = 0;
    for (int repeat = 0; repeat <= plan_.repeats; ++repeat)
      for (std::size_t i = 0; i < ways_.size(); ++i) {
        const std::size_t index = (i + static_cast<std::size_t>(repeat)) % ways_.size();
        if (line) line->start_step(done++, format("%zu bytes, %s", bytes, ways_[index].name.c_str()));
        samples unused;  // the first is a short one that is not counted
        const int iterations = repeat == 0 ? 2 * plan_.batch : plan_.iterations / plan_.repeats;
        take_turn(ways_[index], bytes, busy_ns, iterations, repeat == 0 ? unused : all[index]);
      }
    line.reset();
    if (session_.rank() == 0) print_results(bytes, busy_ns, kernel_ns, all);
  }

  void take_turn(way& arm_run, std::size_t bytes, std::uint64_t busy_ns, int at_least, samples& results) {
    auto& runner = *arm_run.runner;
    const int unit = runner.unit(), iterations = (at_least + unit - 1) / unit * unit;
    const int batch =
        runner.is_one_launch() ? iterations : std::max(unit, std::min(plan_.batch, runner.max_at_once()) / unit * unit);
    session_.context().set_mode(arm_run.setup.mode);
    session_.fill(kStart, bytes);
    session_.barrier();
    runner.enqueue_ns = 0;
    const auto before = cpu_use::now();
    const auto begin = monotonic_ns();
    for (int done = 0; done < iterations; done += batch) runner.iterate(bytes, busy_ns, std::min(batch, iterations - done));
    runner.finish();
    const auto taken_ns = static_cast<double>(monotonic_ns() - begin);
    const auto after = cpu_use::now();
    session_.barrier();
    results.iteration_ns.push_back(taken_ns / iterations);
    results.enqueue_ns.push_back(static_cast<double>(runner.enqueue_ns) / iterations);
    results.busy_percent.push_back((after.seconds - before.seconds) / (taken_ns * 1e-9) * 100);
    results.switches_per_s.push_back(static_cast<double>(after.switches - before.switches) / (taken_ns * 1e-9));
    // Rank 0's words went through both kernels of every iteration.
    const auto expected = kStart + 2 * static_cast<std::uint64_t>(iterations) - (session_.rank() == 0 ? 0 : 1);
    if (const auto wrong = session_.wrong_words(expected, bytes); wrong != 0) {
      wrong_ += wrong;
      std::fprintf(stderr, "%s: %zu of %zu words are wrong after %d iterations\n", arm_run.name.c_str(), wrong, bytes / 8,
                   iterations);
    }
  }

  // One kernel alone, in a row of them.
  double time_kernel(std::size_t bytes, std::uint64_t busy_ns) {
    constexpr int kCount = 100;
    return session_.time_on_gpu(kCount, [&] { session_.launch_step(bytes, busy_ns); });
  }

  void print_results(std::size_t bytes, std::uint64_t busy_ns, double kernel_ns, const std::vector<samples>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double iteration_ns = middle(all[i].iteration_ns), ratio = iteration_ns / middle(all[0].iteration_ns),
                   enqueue_ns = middle(all[i].enqueue_ns), busy = middle(all[i].busy_percent),
                   switches = middle(all[i].switches_per_s);
      std::printf("%9zu %9.1f us %8.2f us  %-18s %10.2f %7.3f %8.1f %9.0f %11.2f\n", bytes,
                  static_cast<double>(busy_ns) * 1e-3, kernel_ns * 1e-3, ways_[i].name.c_str(), iteration_ns * 1e-3, ratio,
                  busy, switches, enqueue_ns * 1e-3);
      if (file_ == nullptr) continue;
      const std::string series =
          format("%s %zu B kernel %llu ns", ways_[i].name.c_str(), bytes, static_cast<unsigned long long>(busy_ns));
      file_->add_samples(series, all[i].iteration_ns);
      file_->add_row({{"series", series},
                      {"arm", to_string(ways_[i].setup.kind)},
                      {"mode", ways_[i].setup.mode == triggered::run_mode::economy ? "economy" : "performance"},
                      {"size_bytes", bytes},
                      {"kernel_asked_ns", busy_ns},
                      {"kernel_ns", kernel_ns},
                      {"iteration_ns_p50", iteration_ns},
                      {"iteration_ns_p99", tail(all[i].iteration_ns)},
                      {"enqueue_ns_p50", enqueue_ns},
                      {"cpu_busy_percent_p50", busy},
                      {"sleeps_per_s_p50", switches},
                      {"ratio_to_first", ratio}});
    }
  }

  bench_rank& session_;
  const pingpong_plan& plan_;
  result_file* file_;
  std::vector<way> ways_;
  std::size_t wrong_ = 0;
};

}  // namespace

int run_pingpong(bench_rank& session, const pingpong_plan& plan, result_file* file) {
  return run(session, plan, file).all();
}

}  // namespace pl::async
