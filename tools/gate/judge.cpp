// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/text.hpp"
#include "cuda/nvml_abi.hpp"
#include "tools/gate/gate.hpp"

namespace pl::gate {
namespace {

using bandwidth::gpu_link_facts;

class state_judge {
 public:
  state_judge(const machine_state& machine, const baseline* known) : machine_(machine), known_(known) {}

  std::vector<finding> run() {
    check_machine();
    for (std::size_t gpu = 0; gpu < machine_.links.gpus.size(); ++gpu) check_gpu(static_cast<int>(gpu));
    return std::move(out_);
  }

 private:
  void add(level severity, const char* check, int gpu, std::string reason) {
    out_.push_back({severity, check, gpu, std::move(reason), 0, 0});
  }
  // One finding for each check, so that a reader sees what was looked at.
  void settle(const char* check, int gpu, const std::string& problem, const std::string& fine) {
    if (problem.empty()) add(level::ok, check, gpu, fine);
    else add(level::unfit, check, gpu, problem);
  }

  void check_machine() {
    if (known_ == nullptr) {
      add(level::note, "baseline", -1, "none: rates are judged by the link model; learn a good machine (--learn)");
      return;
    }
    for (const auto& [bus_id, one] : known_->gpus) {
      const auto& gpus = machine_.links.gpus;
      const bool is_here =
          std::any_of(gpus.begin(), gpus.end(), [&](const gpu_link_facts& facts) { return facts.bus_id == bus_id; });
      if (!is_here) add(level::unfit, "gpus", -1, format("GPU %s (%s) is missing", bus_id.c_str(), one.name.c_str()));
    }
    if (known_->driver_version != machine_.driver_version)
      add(level::note, "driver", -1,
          format("driver %s, learnt with %s: learn again", machine_.driver_version.c_str(), known_->driver_version.c_str()));
  }

  void check_gpu(int gpu) {
    const gpu_link_facts& facts = machine_.links.gpus[static_cast<std::size_t>(gpu)];
    const gpu_health& health = machine_.health[static_cast<std::size_t>(gpu)];
    const auto found =
        known_ != nullptr ? known_->gpus.find(facts.bus_id) : std::map<std::string, baseline_gpu>::const_iterator{};
    const baseline_gpu* learnt = known_ != nullptr && found != known_->gpus.end() ? &found->second : nullptr;
    if (known_ != nullptr && learnt == nullptr)
      add(level::note, "gpus", gpu, format("%s is not in the baseline: learn again", facts.bus_id.c_str()));
    if (!health.has_nvml) add(level::unknown, "nvml", gpu, "NVML does not answer: " + health.why_no_nvml);
    else check_state(gpu, facts, health, learnt);
    check_xids(gpu, facts, learnt);
    check_place(gpu, facts, learnt);
  }

  void check_state(int gpu, const gpu_link_facts& facts, const gpu_health& health, const baseline_gpu* learnt) {
    const std::uint64_t before = learnt != nullptr ? learnt->ecc_uncorrected : 0;
    settle("ecc", gpu,
           facts.ecc_uncorrected > before
               ? format("%llu uncorrected ECC errors since the driver was loaded: reset or replace it",
                        static_cast<unsigned long long>(facts.ecc_uncorrected))
           : health.rows_failed  ? std::string("no spare memory rows are left: replace it")
           : health.rows_pending ? std::string("replaced memory rows wait for a reset of the GPU")
                                 : std::string(),
           "no uncorrected errors");
    settle("pcie_link", gpu, link_problem(facts, learnt),
           format("PCIe %u.0 x%u", facts.pcie_generation_max, facts.pcie_width_now));
    settle("nvlink", gpu, nvlink_problem(facts, learnt), plural(facts.nvlinks_active, "active link"));
    settle("clocks", gpu, clock_problem(facts, learnt),
           format("up to %u MHz, memory %u MHz", facts.sm_clock_max_mhz, facts.memory_clock_max_mhz));
    settle("bar1", gpu,
           learnt != nullptr && facts.bar1_bytes < learnt->bar1_bytes
               ? format("BAR1 has %s, learnt %s: resizable BAR or the firmware's setting is off",
                        format_size(facts.bar1_bytes).c_str(), format_size(learnt->bar1_bytes).c_str())
           : learnt != nullptr && facts.memory_bytes < learnt->memory_bytes
               ? format("%s of memory, learnt %s", format_size(facts.memory_bytes).c_str(),
                        format_size(learnt->memory_bytes).c_str())
               : std::string(),
           format_size(facts.bar1_bytes));
  }

  // An idle link may run at a lower generation, but not narrower than it can.
  static std::string link_problem(const gpu_link_facts& facts, const baseline_gpu* learnt) {
    const unsigned width = learnt != nullptr ? learnt->pcie_width : facts.pcie_width_max;
    if (facts.pcie_width_now < width)
      return format("PCIe x%u, %s x%u: reseat it, look at the slot and the riser", facts.pcie_width_now,
                    learnt != nullptr ? "learnt" : "could be", width);
    if (learnt != nullptr && facts.pcie_generation_max < learnt->pcie_generation)
      return format("PCIe %u.0 at most, learnt %u.0", facts.pcie_generation_max, learnt->pcie_generation);
    return {};
  }

  static std::string nvlink_problem(const gpu_link_facts& facts, const baseline_gpu* learnt) {
    const unsigned wanted = learnt != nullptr ? learnt->nvlinks : facts.nvlinks_active == 0 ? 0 : facts.nvlinks_total;
    if (facts.nvlinks_active >= wanted) return {};
    return format("%u NVLinks are active, %s %u: nvidia-smi nvlink -s and the fabric manager's log say why",
                  facts.nvlinks_active, learnt != nullptr ? "learnt" : "it has", wanted);
  }

  static std::string clock_problem(const gpu_link_facts& facts, const baseline_gpu* learnt) {
    using namespace nvml;
    if ((facts.throttle_reasons & throttle::hardware_thermal) != 0)
      return "slowed down by its temperature: look at the cooling";
    if ((facts.throttle_reasons & throttle::power_brake) != 0)
      return "slowed down by the power brake: look at the power supply";
    if ((facts.throttle_reasons & throttle::hardware_slowdown) != 0)
      return "slowed down by the hardware (nvidia-smi -q -d PERFORMANCE)";
    if (learnt == nullptr) return {};
    if (facts.sm_clock_max_mhz < learnt->sm_mhz)
      return format("clocks reach %u MHz, learnt %u", facts.sm_clock_max_mhz, learnt->sm_mhz);
    if (facts.memory_clock_max_mhz < learnt->memory_mhz)
      return format("the memory's clock reaches %u MHz, learnt %u", facts.memory_clock_max_mhz, learnt->memory_mhz);
    return {};
  }

  void check_xids(int gpu, const gpu_link_facts& facts, const baseline_gpu* learnt) {
    if (!machine_.xids) return add(level::note, "xid", gpu, "the kernel's log cannot be read: " + machine_.why_no_log);
    std::size_t count = 0;
    unsigned last = 0;
    for (const xid_event& one : *machine_.xids) {
      if (!needs_repair(one) || !facts.bus_id.starts_with(one.bus_id)) continue;
      ++count;
      last = one.number;
    }
    const std::size_t before = learnt != nullptr ? learnt->hardware_xids : 0;
    settle("xid", gpu,
           count > before ? format("Xid %u in the kernel's log: NVIDIA's catalogue wants a reset or a repair", last)
                          : std::string(),
           "no errors that want a reset or a repair in the kernel's log");
  }

  void check_place(int gpu, const gpu_link_facts& facts, const baseline_gpu* learnt) {
    settle("numa", gpu,
           learnt != nullptr && facts.numa_node != learnt->numa_node
               ? format("on NUMA node %d, learnt %d: look at the firmware's settings", facts.numa_node, learnt->numa_node)
               : std::string(),
           format("NUMA node %d", facts.numa_node));
  }

  const machine_state& machine_;
  const baseline* known_;
  std::vector<finding> out_;
};

std::string place_text(const reading& one) {
  return one.peer >= 0 ? format("%s to GPU %d", one.name.c_str(), one.peer) : one.name;
}

finding judge_by_model(const reading& one) {
  if (!one.judged || !one.expected)
    return {level::note, one.name,
            one.gpu,     format("%s %.3g GB/s: nothing to compare with", place_text(one).c_str(), one.value),
            one.value,   0};
  const double limit = one.expected->value;
  if (one.judged->level == bandwidth::verdict_level::good)
    return {level::ok, one.name, one.gpu, format("%s %.3g GB/s of %.3g", place_text(one).c_str(), one.value, limit),
            one.value, limit};
  return {one.judged->is_varied ? level::unknown : level::unfit,
          one.name,
          one.gpu,
          format("%s %.3g GB/s of %.3g: %s", place_text(one).c_str(), one.value, limit, one.judged->reason.c_str()),
          one.value,
          limit};
}

// A link that is slow is slow in every sample; where one was as learnt, something else used the machine.
finding judge_by_baseline(const reading& one, const baseline_figures& learnt, double chance) {
  const auto least = least_value(learnt, chance);
  const std::string place = place_text(one);
  if (!least)
    return {level::note, one.name, one.gpu, place + ": the learnt runs are too few, or differ too much, for a threshold",
            one.value,   0};
  const auto usual = bandwidth::describe(learnt.values).median;
  const std::string compared = format("%s %.3g GB/s, learnt %.3g", place.c_str(), one.value, usual);
  if (one.value >= *least) return {level::ok, one.name, one.gpu, compared, one.value, *least};
  const double best = bandwidth::describe(one.samples).max;
  const std::string limit = format("%s, at least %.3g", compared.c_str(), *least);
  if (best < *least) return {level::unfit, one.name, one.gpu, limit, one.value, *least};
  return {level::unknown, one.name,
          one.gpu,        limit + format("; its samples reach %.3g: something else used the machine", best),
          one.value,      *least};
}

}  // namespace

const char* to_string(level value) {
  switch (value) {
    case level::ok:
      return "ok";
    case level::note:
      return "note";
    case level::unknown:
      return "unknown";
    case level::unfit:
      return "UNFIT";
  }
  return "?";
}

std::vector<finding> judge_state(const machine_state& machine, const baseline* known) {
  return state_judge(machine, known).run();
}

std::vector<finding> judge_readings(const machine_state& machine, const std::vector<reading>& readings,
                                    const baseline* known, const judge_options& options) {
  const double figures = static_cast<double>(std::count_if(readings.begin(), readings.end(), has_threshold)) +
                         (known != nullptr ? static_cast<double>(machine.links.gpus.size()) : 0);
  const double chance = options.false_alarm / std::max(figures, 1.0);
  std::vector<finding> out;
  for (const reading& one : readings) {
    const std::string key = key_of(machine, one);
    switch (one.outcome) {
      case reading::state::wrong:
        out.push_back({level::unfit, one.name, one.gpu, "wrong data: " + one.reason, 0, 0});
        continue;
      case reading::state::failed:
        out.push_back({level::unfit, one.name, one.gpu, one.reason, 0, 0});
        continue;
      case reading::state::unavailable: {
        const bool is_usual = known == nullptr || known->unavailable.contains(key);
        out.push_back({is_usual ? level::note : level::unfit, one.name, one.gpu,
                       format("%s does not work here%s: %s", place_text(one).c_str(),
                              is_usual ? "" : ", and did when learnt", one.reason.c_str()),
                       0, 0});
        continue;
      }
      case reading::state::measured:
        break;
    }
    if (!has_threshold(one)) {
      out.push_back(
          {level::ok, one.name, one.gpu,
           one.name == "placement" ? std::string("host memory is near it") : place_text(one) + ": every byte is right",
           one.value, 0});
      continue;
    }
    const auto learnt =
        known != nullptr ? known->figures.find(key) : std::map<std::string, baseline_figures>::const_iterator{};
    out.push_back(known != nullptr && learnt != known->figures.end() ? judge_by_baseline(one, learnt->second, chance)
                                                                     : judge_by_model(one));
  }
  if (known != nullptr)
    for (finding& one : judge_relative(machine, readings, *known, chance)) out.push_back(std::move(one));
  return out;
}

}  // namespace pl::gate
