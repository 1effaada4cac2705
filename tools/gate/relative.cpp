// SPDX-License-Identifier: Apache-2.0
// All rates of one GPU as one figure, relative to the machine's other GPUs. What slows all of them at once (a busy
// host, a warm room) scatters single rates from run to run but cancels out here, so a slow GPU is found from a smaller
// loss.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.hpp"
#include "tools/bandwidth/outcome.hpp"
#include "tools/gate/gate.hpp"

namespace pl::gate {
namespace {

constexpr std::array kOwnRates = {"h2d", "d2h", "local"};  // a rate between two GPUs would say nothing of which one is slow

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double one : values) sum += one;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// Logarithms of one GPU's rates against their means over the learnt runs, and the mean over its rates.
struct own_rates {
  std::vector<double> runs;  // one a learnt run
  double variance = 0;       // from the samples inside the runs
  std::size_t count = 0;     // rates that it has
};

double mean_log(const baseline_figures& one) {
  double sum = 0;
  for (const double value : one.values) sum += std::log(value);
  return sum / static_cast<double>(one.values.size());
}

// Returns nothing for a run without one of the rates, which cannot be compared with the others.
std::optional<own_rates> rates_of(const baseline& known, const std::string& bus_id) {
  own_rates out;
  for (const char* name : kOwnRates) {
    const auto found = known.figures.find(std::string(name) + "/" + bus_id);
    if (found == known.figures.end() || found->second.values.empty()) continue;
    const baseline_figures& one = found->second;
    if (out.count > 0 && one.values.size() != out.runs.size()) return std::nullopt;
    out.runs.resize(one.values.size());
    const double usual = mean_log(one);
    for (std::size_t run = 0; run < out.runs.size(); ++run) out.runs[run] += std::log(one.values[run]) - usual;
    out.variance += std::pow(one.sample_scatter / mean_of(one.values), 2);
    ++out.count;
  }
  const auto count = static_cast<double>(std::max<std::size_t>(out.count, 1));
  for (double& run : out.runs) run /= count;
  out.variance /= count * count;
  return out;
}

// Every GPU whose rates were learnt in the same runs, by bus id.
std::map<std::string, own_rates> comparable(const baseline& known) {
  std::map<std::string, own_rates> out;
  std::size_t runs = 0;
  for (const auto& [bus_id, gpu] : known.gpus) {
    auto one = rates_of(known, bus_id);
    if (!one || (one->count != 0 && !out.empty() && one->runs.size() != runs)) return {};
    if (one->count == 0) continue;
    runs = one->runs.size();
    out.emplace(bus_id, *std::move(one));
  }
  return out;
}

// One GPU relative to the mean of the others; a single GPU relative to nothing.
double beside_others(const std::map<std::string, double>& all, const std::string& bus_id) {
  double others = 0;
  for (const auto& [other, value] : all)
    if (other != bus_id) others += value / static_cast<double>(all.size() - 1);
  return all.at(bus_id) - others;
}

// Logarithm of the GPU's rates against what was learnt; nothing where one that was learnt is missing. `best`: by the best
// sample of each.
std::optional<double> rates_now(const machine_state& machine, const std::vector<reading>& readings, const baseline& known,
                                const std::string& bus_id, bool best) {
  double sum = 0;
  std::size_t found = 0;
  for (const reading& one : readings) {
    const bool is_own = std::find(kOwnRates.begin(), kOwnRates.end(), one.name) != kOwnRates.end();
    if (!is_own || one.outcome != reading::state::measured || !(one.value > 0)) continue;
    const std::string key = key_of(machine, one);
    const auto learnt = known.figures.find(key);
    if (key != one.name + "/" + bus_id || learnt == known.figures.end()) continue;
    const double value = best && !one.samples.empty() ? bandwidth::describe(one.samples).max : one.value;
    sum += std::log(value) - mean_log(learnt->second);
    ++found;
  }
  const auto learnt = rates_of(known, bus_id);
  if (found == 0 || !learnt || found != learnt->count) return std::nullopt;
  return sum / static_cast<double>(found);
}

}  // namespace

std::map<std::string, baseline_figures> relative_figures(const baseline& known) {
  const auto all = comparable(known);
  std::map<std::string, baseline_figures> out;
  for (const auto& [bus_id, one] : all) {
    baseline_figures& figures = out[bus_id];
    double variance = one.variance;
    for (const auto& [other, rates] : all)
      if (other != bus_id) variance += rates.variance / std::pow(static_cast<double>(all.size() - 1), 2);
    figures.sample_scatter = std::sqrt(variance);
    for (std::size_t run = 0; run < one.runs.size(); ++run) {
      std::map<std::string, double> then;
      for (const auto& [other, rates] : all) then[other] = rates.runs[run];
      figures.values.push_back(std::exp(beside_others(then, bus_id)));
    }
  }
  return out;
}

std::vector<finding> judge_relative(const machine_state& machine, const std::vector<reading>& readings,
                                    const baseline& known, double chance) {
  const auto learnt = relative_figures(known);
  std::map<std::string, double> now, best;
  for (const auto& [bus_id, figures] : learnt) {
    const auto usual = rates_now(machine, readings, known, bus_id, false);
    if (!usual) return {};  // a GPU or a rate is missing, which another finding says
    now[bus_id] = *usual;
    best[bus_id] = *rates_now(machine, readings, known, bus_id, true);
  }
  std::vector<finding> out;
  for (std::size_t gpu = 0; gpu < machine.links.gpus.size(); ++gpu) {
    const std::string& bus_id = machine.links.gpus[gpu].bus_id;
    const auto figures = learnt.find(bus_id);
    if (figures == learnt.end()) continue;
    const auto least = least_value(figures->second, chance);
    if (!least) continue;
    // A neighbour that is quicker than it was makes no GPU slow: it must be slower than it was itself, too.
    const auto share_of = [&](const std::map<std::string, double>& all) {
      return std::exp(std::max(beside_others(all, bus_id), all.at(bus_id)));
    };
    const double share = share_of(now);
    const std::string text = format("its rates are %.1f %% of what was learnt%s, at least %.1f %%", 100 * share,
                                    learnt.size() > 1 ? " beside the other GPUs'" : "", 100 * *least);
    std::map<std::string, double> hopeful = now;
    hopeful[bus_id] = best[bus_id];
    const double best_share = share_of(hopeful);
    if (share >= *least) out.push_back({level::ok, kRelative, static_cast<int>(gpu), text, 0, 0});
    else if (best_share < *least) out.push_back({level::unfit, kRelative, static_cast<int>(gpu), text, 0, 0});
    else
      out.push_back({level::unknown, kRelative, static_cast<int>(gpu),
                     text + format("; its best samples reach %.1f %%: something else used it", 100 * best_share), 0, 0});
  }
  return out;
}

}  // namespace pl::gate
