// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/runner.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>

#include "base/text.hpp"
#include "tools/common/tool.hpp"
#include "tools/p2p/collective_loop.hpp"
#include "tools/p2p/figures.hpp"
#include "tools/p2p/loops.hpp"
#include "tools/p2p/one_sided_loop.hpp"
#include "tools/p2p/osu_text.hpp"

namespace pl::p2p {
namespace {

// Compared libraries take turns this often, unless --batches sets another number, so that disturbances hit all alike.
constexpr int kTurns = 10;
// For a turn after the first one: this process's caches know the library and its memory, but the CPU's may not.
constexpr int kTurnWarmUp = 10;

const char* verdict_of(const settings& asked, const measurement& measured) {
  if (!asked.validate) return nullptr;
  return measured.errors == 0 ? "Pass" : "Fail";
}

class run {
 public:
  run(const settings& asked, const std::vector<contender>& arms, buffer_source& memory, const std::string& program,
      result_file* file)
      : asked_(asked), arms_(arms), memory_(memory), program_(program), file_(file), first_(*arms.front().world) {
    pairs_ = asked.pairs != 0 ? asked.pairs : first_.size() / 2;
    if (!has_pairs(asked.kind)) pairs_ = 1;
    if (is_wide()) titles_ = wide_titles();
  }

  int all_sizes() {
    check_processes();
    if (prints())
      std::fputs((osu_preamble(asked_, pairs_) + (is_wide() ? wide_header(titles_) : osu_columns(asked_))).c_str(), stdout);
    return asked_.vary_window ? all_windows() : one_window();
  }

 private:
  bool prints() const { return first_.rank() == 0; }
  bool is_wide() const { return arms_.size() > 1 || !asked_.percentiles.empty() || asked_.batches > 1; }

  void check_processes() const {
    const int ranks = first_.size();
    if (is_collective(asked_.kind)) return;
    if (!has_pairs(asked_.kind) && ranks != 2)
      throw tools::tool_failure(format("this test needs exactly two processes, and there are %d", ranks));
    if (ranks < 2) throw tools::tool_failure("this test needs at least two processes, and there is one");
    if (2 * pairs_ > ranks)
      throw tools::tool_failure(format("%s needs %d processes, and there are %d",
                                       plural(static_cast<std::uint64_t>(pairs_), "pair").c_str(), 2 * pairs_, ranks));
  }

  int one_window() {
    for (const auto size : sizes_of(asked_)) {
      std::vector<measurement> all = measure(size, is_latency(asked_.kind) ? 1 : asked_.window);
      const bool wrong = std::any_of(all.begin(), all.end(), [](const auto& one) { return one.errors != 0; });
      if (prints()) {
        std::fputs(row_text(all).c_str(), stdout);
        keep_results(all);
        if (wrong) std::fputs(osu_validation_error(program_, size).c_str(), stdout);
      }
      if (wrong) return fail();
    }
    return tools::kExitOk;
  }

  int all_windows() {
    std::string rates;
    for (const auto size : sizes_of(asked_)) {
      std::vector<double> bandwidths, messages;
      for (const int window : kVariedWindows) {
        std::vector<measurement> all = measure(size, window);
        if (prints()) keep_results(all);
        if (all[0].errors != 0) {
          if (prints()) std::fputs(osu_validation_error(program_, size).c_str(), stdout);
          return fail();
        }
        bandwidths.push_back(headline(all[0]));
        messages.push_back(1e6 * bandwidths.back() / static_cast<double>(size));
      }
      if (prints()) std::fputs(osu_window_row(size, bandwidths).c_str(), stdout);
      rates += osu_window_row(size, messages);
    }
    if (prints() && asked_.print_rate) std::fputs((osu_message_rate_title() + rates).c_str(), stdout);
    return tools::kExitOk;
  }

  int fail() {
    if (file_ != nullptr) file_->set_pass(false);
    return tools::kExitFailed;
  }

  // ---- measuring

  std::vector<measurement> measure(std::size_t size, int window) {
    renew_buffers(size, window);
    std::vector<measurement> all(arms_.size());
    const auto whole = repetition_at(asked_, size);
    const int turns = asked_.batches > 1 ? asked_.batches : arms_.size() > 1 ? std::min(kTurns, whole.iterations) : 1;
    for (auto& one : all) {
      one.size_bytes = size;
      one.window = window;
      one.pairs = pairs_;
      one.repeated = whole;
    }
    for (int turn = 0; turn < turns; ++turn)
      for (std::size_t i = 0; i < arms_.size(); ++i) {
        const std::size_t index = (i + static_cast<std::size_t>(turn)) % arms_.size();
        take_turn(*arms_[index].world, all[index], turn, turns);
      }
    return all;
  }

  // --batches repeats the whole; turns of compared libraries share the iterations out.
  void take_turn(transport& world, measurement& measured, int turn, int turns) {
    loop_plan plan;
    plan.size_bytes = measured.size_bytes;
    plan.iterations = asked_.batches > 1 ? measured.repeated.iterations : std::max(1, measured.repeated.iterations / turns);
    plan.warm_up = turn == 0 ? measured.repeated.warm_up : std::min(measured.repeated.warm_up, kTurnWarmUp);
    plan.window = measured.window;
    plan.pairs = pairs_;
    plan.validate = asked_.validate;
    plan.validation_warm_up = asked_.validation_warm_up;
    plan.multiple_buffers = asked_.multiple_buffers;
    plan.barrier_each_iteration = asked_.kind == benchmark::multi_bandwidth || asked_.cold;
    plan.consume = asked_.consume;
    const auto done = run_loop(world, plan);
    measured.errors += done.errors;
    measured.samples_ns.insert(measured.samples_ns.end(), done.samples_ns.begin(), done.samples_ns.end());
    measured.batch_values.push_back(figure_of(asked_.kind, measured, mean_over_pairs(world, done.samples_ns)));
  }

  loop_outcome run_loop(transport& world, const loop_plan& plan) {
    if (collective_) return collective_->run(world, plan);
    if (one_sided_) return one_sided_->run(world, plan);
    if (is_latency(asked_.kind)) return run_latency(world, *buffers_, plan);
    if (asked_.kind == benchmark::bidirectional) return run_bidirectional(world, *buffers_, plan);
    return run_bandwidth(world, *buffers_, plan);
  }

  // osu_multi_lat reports the mean of all ranks; the others report rank 0's figures.
  double mean_over_pairs(transport& world, const std::vector<double>& samples_ns) const {
    const double mine = samples_ns.empty() ? 0
                                           : std::accumulate(samples_ns.begin(), samples_ns.end(), 0.0) /
                                                 static_cast<double>(samples_ns.size());
    // A collective's samples are means over the ranks already.
    return asked_.kind == benchmark::multi_latency ? sum_over_ranks(world, mine) / (2.0 * pairs_) : mine;
  }

  // One pool for the whole run, as in OSU; a new one per size if the size decides its contents.
  void renew_buffers(std::size_t size, int window) {
    if (is_collective(asked_.kind)) {
      collective_.emplace(memory_, asked_.kind, asked_.source, size, first_.rank(), first_.size());
      return;
    }
    if (is_one_sided(asked_.kind)) {
      one_sided_.emplace(memory_, asked_.kind, asked_.source, asked_.destination, size);
      return;
    }
    const bool by_size = asked_.multiple_buffers || asked_.cold;
    if (buffers_ && !by_size) return;
    buffers_.reset();
    buffer_plan plan;
    plan.kind = first_.rank() < pairs_ ? asked_.source : asked_.destination;
    plan.size_bytes = std::max(by_size ? size : asked_.max_bytes, kAnswerBytes);
    plan.slots = asked_.multiple_buffers ? static_cast<std::size_t>(window) : 1;
    plan.rotation = static_cast<std::size_t>(asked_.rotate);
    plan.cold = asked_.cold;
    buffers_.emplace(memory_, plan);
  }

  // ---- telling

  const char* unit() const { return is_latency(asked_.kind) ? "us" : "MB/s"; }

  std::vector<std::string> wide_titles() const {
    std::vector<std::string> titles;
    const bool alone = arms_.size() == 1;
    for (const auto& one : arms_)
      titles.push_back(alone ? std::string(unit()) : format("%s (%s)", to_string(one.kind), unit()));
    if (alone && asked_.batches > 1) titles.insert(titles.end(), {"lowest batch", "highest batch"});
    for (const auto& one : arms_)
      for (const double percent : asked_.percentiles)
        titles.push_back(alone ? percentile_name(percent) : to_string(one.kind) + (" " + percentile_name(percent)));
    for (std::size_t i = 1; i < arms_.size(); ++i)
      titles.push_back(format("%s/%s", to_string(arms_[i].kind), to_string(arms_[0].kind)));
    if (asked_.validate) titles.emplace_back("Validation");
    return titles;
  }

  std::string row_text(const std::vector<measurement>& all) const {
    const measurement& one = all[0];
    if (is_wide()) return wide_text(all);
    const double value = headline(one);
    if (collective_) return collective_row(one, value);
    if (asked_.full && is_latency(asked_.kind))
      return osu_full_row(one.size_bytes, value, percentile_figure(asked_.kind, one, 1e-9),
                          percentile_figure(asked_.kind, one, 100), one.repeated.iterations, verdict_of(asked_, one));
    std::vector<double> values{value};
    if (asked_.kind == benchmark::multi_bandwidth && asked_.print_rate)
      values.push_back(1e6 * value / static_cast<double>(one.size_bytes));
    return osu_row(one.size_bytes, values, verdict_of(asked_, one));
  }

  // The lowest and highest are of the ranks' means, as in OSU.
  std::string collective_row(const measurement& one, double value) const {
    const bool has_size = asked_.kind != benchmark::barrier;
    if (asked_.full) {
      const double lowest = collective_->fastest_rank_ns() / 1e3, highest = collective_->slowest_rank_ns() / 1e3;
      return has_size
                 ? osu_full_row(one.size_bytes, value, lowest, highest, one.repeated.iterations, verdict_of(asked_, one))
                 : osu_full_barrier_row(value, lowest, highest, one.repeated.iterations);
    }
    return has_size ? osu_row(one.size_bytes, {&value, 1}, verdict_of(asked_, one)) : osu_barrier_row(value);
  }

  std::string wide_text(const std::vector<measurement>& all) const {
    std::vector<cell> cells;
    const bool alone = all.size() == 1;
    for (const auto& one : all) cells.push_back({alone ? headline(one) : median_figure(asked_.kind, one), 2});
    if (alone && asked_.batches > 1) {
      const auto [lowest, highest] = std::minmax_element(all[0].batch_values.begin(), all[0].batch_values.end());
      cells.push_back({*lowest, 2});
      cells.push_back({*highest, 2});
    }
    for (const auto& one : all)
      for (const double percent : asked_.percentiles) cells.push_back({percentile_figure(asked_.kind, one, percent), 2});
    for (std::size_t i = 1; i < all.size(); ++i) cells.push_back({ratio_to_first(all, i), 3});
    const auto wrong = std::find_if(all.begin(), all.end(), [](const auto& one) { return one.errors != 0; });
    return wide_row(all[0].size_bytes, cells, verdict_of(asked_, wrong == all.end() ? all[0] : *wrong));
  }

  double ratio_to_first(const std::vector<measurement>& all, std::size_t index) const {
    const double first = median_figure(asked_.kind, all[0]);
    return first > 0 ? median_figure(asked_.kind, all[index]) / first : 0;
  }

  void keep_results(const std::vector<measurement>& all) {
    if (file_ == nullptr) return;
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto row = result_row(asked_, all[i]);
      row["via"] = to_string(arms_[i].kind);
      row["library"] = arms_[i].world->library();
      if (arms_.size() > 1) row[format("ratio_p50_to_%s", to_string(arms_[0].kind))] = ratio_to_first(all, i);
      const std::string series = format("%s %zu window %d", to_string(arms_[i].kind), all[i].size_bytes, all[i].window);
      row["series"] = series;
      file_->add_samples(series, all[i].samples_ns);
      file_->add_row(std::move(row));
    }
  }

  const settings& asked_;
  const std::vector<contender>& arms_;
  buffer_source& memory_;
  const std::string& program_;
  result_file* file_;
  transport& first_;
  int pairs_ = 1;
  std::vector<std::string> titles_;
  std::optional<buffer_pool> buffers_;
  std::optional<collective_loop> collective_;
  std::optional<one_sided_loop> one_sided_;
};

}  // namespace

int run_benchmark(const settings& asked, const std::vector<contender>& arms, buffer_source& memory,
                  const std::string& program, result_file* file) {
  return run(asked, arms, memory, program, file).all_sizes();
}

}  // namespace pl::p2p
