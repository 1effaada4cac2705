// SPDX-License-Identifier: Apache-2.0
// Is this machine fit for a job? Facts and readings in, findings out. The parts here are pure, so that tests can play any
// machine.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "tools/bandwidth/judgement.hpp"

namespace pl::gate {

// One "NVRM: Xid" line of the kernel's log.
struct xid_event {
  std::string bus_id;  // "0000:0b:00"
  unsigned number = 0;
  bool is_fatal = false;  // of numbers whose text decides: an NVLink error called fatal, a recovery action that is required
  auto operator<=>(const xid_event&) const = default;
};
// The events of a whole log, in order.
std::vector<xid_event> parse_xids(const std::string& log);
// NVIDIA's catalogue wants the GPU reset, the machine restarted or the hardware looked at. Other errors end programs, or are
// handled, and say nothing about the next job.
bool needs_repair(const xid_event& one);

// What is known without using a GPU. The links are those of `peerlane bandwidth`.
struct gpu_health {
  bool has_nvml = false;
  std::string why_no_nvml;
  std::uint64_t bar1_used_bytes = 0;
  bool rows_pending = false, rows_failed = false;  // memory rows replaced: needs a reset; no spare row left
};
struct machine_state {
  bandwidth::machine_links links;
  std::vector<gpu_health> health;  // by CUDA ordinal
  std::string driver_version;
  std::optional<std::vector<xid_event>> xids;  // nothing: the log cannot be read
  std::string why_no_log;
};

// One thing that was measured, or tried. The figure is the median of the samples.
struct reading {
  std::string name;  // "h2d", "d2h", "local", "p2p", "host_memory", "placement", "mapping", "channel"
  int gpu = 0, peer = -1;
  enum class state { measured, wrong, unavailable, failed } outcome = state::measured;
  bool is_simulated = false;  // the CPU's own figures then say nothing
  double value = 0;           // GB/s
  std::vector<double> samples;
  std::string reason;                              // of every outcome but measured
  std::optional<bandwidth::expectation> expected;  // by the link model
  std::optional<bandwidth::verdict> judged;        // against it
};
// "h2d/0000:0a:00.0", "p2p/0000:0a:00.0/0000:0b:00.0": the same in every run, whatever the ordinals are.
std::string key_of(const machine_state& machine, const reading& one);
// Figures by which a machine is judged; others only show that the way works.
bool has_threshold(const reading& one);

// What a good machine showed. Kept in a separate file, written by --learn.
struct baseline_figures {
  std::vector<double> values;  // one a run
  double sample_scatter = 0;   // standard error of a run's median, from the samples inside the runs
};
struct baseline_gpu {
  std::string name;
  unsigned pcie_generation = 0, pcie_width = 0, nvlinks = 0, sm_mhz = 0, memory_mhz = 0;
  std::uint64_t bar1_bytes = 0, memory_bytes = 0, ecc_uncorrected = 0;
  std::size_t hardware_xids = 0;
  int numa_node = -1;
};
struct baseline {
  std::string driver_version;
  bool simulated = false;
  std::map<std::string, baseline_gpu> gpus;         // by bus id
  std::map<std::string, baseline_figures> figures;  // by key_of
  std::set<std::string> unavailable;                // readings that this machine cannot have
};
baseline learn(const machine_state& machine, const std::vector<std::vector<reading>>& runs);
// More runs of the same machine. EINVAL: it is another one, or its driver is.
result<baseline> joined(const baseline& earlier, const baseline& later);
nlohmann::json to_json(const baseline& known);
// EINVAL: not such a file, with what it lacks.
result<baseline> parse_baseline(const std::string& text);
// ENOENT and the like, EINVAL.
result<baseline> load_baseline(const std::string& path);

// The least value that the learnt scatter explains: of a machine that is as it was, a run falls below it with probability
// `chance`. By Student's t for one more value of the same distribution. Nothing with fewer than three runs.
std::optional<double> least_value(const baseline_figures& known, double chance);
// t with P(T > t) = chance, for `freedom` degrees.
double t_quantile(double chance, double freedom);

enum class level { ok, note, unknown, unfit };
const char* to_string(level value);
struct finding {
  level severity = level::ok;
  std::string check;  // short, stable: "ecc", "pcie_link", "h2d", ...
  int gpu = -1;       // -1: the machine
  std::string reason;
  double value = 0, limit = 0;  // of figures; else 0
};

struct judge_options {
  double false_alarm = 1e-4;  // chance that a healthy machine is called unfit, of all figures together
};
// The part that disturbs nobody: state, errors and links, compared with the baseline if there is one (may be null).
std::vector<finding> judge_state(const machine_state& machine, const baseline* known);
// Figures: wrong bytes, ways that do not work, rates; one finding for each reading, in their order, then those of
// judge_relative. `known` may be null: then the link model decides.
std::vector<finding> judge_readings(const machine_state& machine, const std::vector<reading>& readings,
                                    const baseline* known, const judge_options& options);

// A GPU's rates as one figure, relative to those of the other GPUs: what slows all of them cancels out.
inline constexpr const char* kRelative = "rates";
// The learnt figures by bus id; 1 is normal. Empty if the runs of the GPUs cannot be compared.
std::map<std::string, baseline_figures> relative_figures(const baseline& known);
std::vector<finding> judge_relative(const machine_state& machine, const std::vector<reading>& readings,
                                    const baseline& known, double chance);

// Worst first.
struct outcome {
  level worst = level::ok;
  bool is_busy = false;       // another process has a GPU
  bool only_passive = false;  // nothing was measured
  double seconds = 0;
  std::vector<finding> findings;
  std::vector<reading> readings;
};

// One line, the cause first: "unfit: GPU 0: PCIe x8, learnt x16 (2 more)".
std::string one_line(const outcome& result, std::size_t gpus);
// Node exporter's textfile format, with the state of every check.
std::string prometheus_text(const outcome& result, const machine_state& machine);
std::string table_text(const outcome& result);

}  // namespace pl::gate
