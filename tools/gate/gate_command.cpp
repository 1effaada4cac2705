// SPDX-License-Identifier: Apache-2.0
// gate: is this machine fit for a job? One line, an exit code, and the same for schedulers and monitors.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <thread>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "measure/machine.hpp"
#include "os/unique_fd.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/nvml.hpp"
#include "tools/common/options.hpp"
#include "tools/common/report.hpp"
#include "tools/common/terminal.hpp"
#include "tools/gate/gate.hpp"
#include "tools/gate/measure.hpp"

namespace pl::tools {
namespace {

using namespace pl::gate;  // NOLINT: the command is all about it

constexpr int kExitUnfit = 2, kExitUnknown = 3, kExitInUse = 4;
constexpr const char* kUsualBaseline = "/var/lib/peerlane/gate.json";
constexpr const char* kKernelLog = "/dev/kmsg";
// A figure that is too low is measured again, each time after twice the pause: what is slow stays slow, and another tenant's
// burst passes. 1.5 s in all, on machines that may be unfit only.
constexpr unsigned kMaxRepeats = 4;
constexpr auto kFirstPause = std::chrono::milliseconds(100);
constexpr unsigned kFileMode = 0644;  // a baseline that everybody may write is refused
constexpr std::uint64_t kSecondNs = 1'000'000'000;

struct gate_options {
  std::string baseline_path, learn_path, prometheus_path, kernel_log, output = "text", codes = "plain";
  std::int64_t runs = 8, budget_s = 0;
  double false_alarm = 1e-4;
  bool passive = false, refuse_in_use = false, add = false;
  common_options common;
};

std::optional<int> parse(const invocation& call, gate_options& options) {
  std::string false_alarm;
  command_parser parser(
      call,
      "Decides if this machine is fit for a job. Compares links, errors, clocks, memory and copy rates of the GPUs with a "
      "baseline from a good machine. Exit code 0: fit, 2: unfit, 3: unknown, 4: in use (--refuse-in-use)");
  parser.text("--baseline", "FILE", options.baseline_path,
              "Baseline of a good machine [/var/lib/peerlane/gate.json if it exists]");
  parser.text("--learn", "FILE", options.learn_path, "Measure several times and write the baseline to this file");
  parser.flag("--add", options.add,
              "With --learn: add the runs to the file, so that the baseline covers the variation between days");
  parser.integer("--runs", options.runs, 1, 1000,
                 "Number of runs of --learn; a baseline needs three for its thresholds [8]");
  parser.flag("--passive", options.passive, "Only read the machine's state: no copies, no context on a GPU");
  parser.flag("--refuse-in-use", options.refuse_in_use,
              "Exit with code 4 if another process uses a GPU; without this, only the passive part runs then");
  parser.integer("--budget", "SECONDS", options.budget_s, 0, 600,
                 "Time after which no new measurement starts, s; 0: 10 for one GPU, 20 for more [0]");
  parser.text("--false-alarm", "CHANCE", false_alarm,
              "Probability that variation alone makes a healthy machine unfit [1e-4]");
  parser.text("--output", "text|line|prometheus", options.output, "Output format [text]");
  parser.text("--exit-codes", "plain|npd|prolog", options.codes,
              "Exit codes; npd: 1 unfit, 2 unknown; prolog: 1 unfit, otherwise 0 [plain]");
  parser.text("--prometheus", "FILE", options.prometheus_path, "Write text for node exporter to this file, atomically");
  parser.text("--kernel-log", "FILE", options.kernel_log, "Kernel log in which to search for Xid errors [/dev/kmsg]");
  parser.common(options.common, false);
  if (const auto code = parser.parse()) return code;
  const auto one_of = [&](const char* name, const std::string& value, std::initializer_list<const char*> known) {
    for (const char* each : known)
      if (value == each) return;
    throw tool_failure(format("%s: \"%s\" is not one of the words that -h lists", name, value.c_str()));
  };
  one_of("--output", options.output, {"text", "line", "prometheus"});
  one_of("--exit-codes", options.codes, {"plain", "npd", "prolog"});
  if (options.prometheus_path == "-")
    throw tool_failure("--prometheus: name a file; --output prometheus writes to standard output");
  if (options.learn_path == "-") throw tool_failure("--learn: name a file, which --baseline reads");
  if (!false_alarm.empty()) {
    char* end = nullptr;
    options.false_alarm = std::strtod(false_alarm.c_str(), &end);
    if (*end != '\0' || !(options.false_alarm > 0 && options.false_alarm < 0.5))
      throw tool_failure(
          format("--false-alarm: expected a probability between 0 and 0.5, such as 1e-4; got \"%s\"", false_alarm.c_str()));
  }
  if (options.baseline_path.empty() && access(kUsualBaseline, R_OK) == 0) options.baseline_path = kUsualBaseline;
  return std::nullopt;
}

// The kernel's own log: one record for each read, and EAGAIN behind the last one. Returns the errno value of a failure.
int read_kernel_records(const std::string& path, std::string& out) {
  const unique_fd log(real_device_io(), open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!log) return errno;
  char record[8192];
  for (;;) {
    const ssize_t got = read(log.get(), record, sizeof record);
    if (got > 0) out.append(record, static_cast<std::size_t>(got));
    if (got > 0 && out.back() != '\n') out += '\n';
    if (got == 0) return 0;
    if (got < 0 && errno != EPIPE && errno != EINTR)  // EPIPE: a record was overwritten meanwhile
      return errno == EAGAIN ? 0 : errno;
  }
}

std::string read_kernel_log(const std::string& path, std::string& problem) {
  constexpr std::size_t kMaxBytes = std::size_t{256} << 20;
  std::string out;
  int code = 0;
  if (path == kKernelLog) {
    code = read_kernel_records(path, out);
  } else {
    auto text = read_whole_file(path, kMaxBytes);
    code = text ? 0 : text.code();
    if (text) out = *std::move(text);
  }
  if (code != 0) problem = format("%s: %s", path.c_str(), errno_text(code).c_str());
  return out;
}

machine_state read_state(bandwidth::gpu_set& gpus, const gate_options& options) {
  machine_state out;
  out.links = bandwidth::read_links(gpus);
  machine_facts facts = describe_host();
  describe_gpu(facts, gpus.cuda(), 0);
  out.driver_version = facts.driver_version;
  for (int gpu = 0; gpu < gpus.count(); ++gpu) {
    gpu_health& health = out.health.emplace_back();
    const auto nvml = nvml_device::open(gpus.bus_id(gpu), &health.why_no_nvml);
    health.has_nvml = nvml.has_value();
    if (!nvml) continue;
    if (const auto use = nvml->bar1()) health.bar1_used_bytes = use->used_bytes;
    if (const auto repairs = nvml->repairs())
      health.rows_pending = repairs->is_pending, health.rows_failed = repairs->has_failed;
  }
  if (gpus.simulated() && options.kernel_log.empty()) {
    out.why_no_log = "the GPU is simulated";
    return out;
  }
  const std::string log = read_kernel_log(options.kernel_log.empty() ? kKernelLog : options.kernel_log, out.why_no_log);
  // The default often is root's alone, which is no finding. A file that was asked for would be missed in silence.
  if (!out.why_no_log.empty() && !options.kernel_log.empty())
    throw tool_failure("cannot read the kernel log " + out.why_no_log);
  if (out.why_no_log.empty()) out.xids = parse_xids(log);
  return out;
}

bool is_in_use(const machine_state& machine) {
  return std::any_of(machine.links.gpus.begin(), machine.links.gpus.end(),
                     [](const auto& one) { return one.other_processes > 0; });
}

std::uint64_t deadline_of(const gate_options& options, int gpus) {
  const std::int64_t seconds = options.budget_s > 0 ? options.budget_s : gpus == 1 ? 8 : 18;  // the rest for the last check
  return monotonic_ns() + static_cast<std::uint64_t>(seconds) * kSecondNs;
}

void write_whole(const std::string& path, const std::string& text) {
  if (const status written = write_whole_file(path, text, kFileMode); !written)
    throw tool_failure(format("cannot write %s: %s", path.c_str(), written.error().message.c_str()));
}

class gate_run {
 public:
  gate_run(const gate_options& options, bandwidth::gpu_set& gpus)
      : options_(options), gpus_(gpus), begin_ns_(monotonic_ns()), machine_(read_state(gpus, options)) {
    if (!options.baseline_path.empty()) known_ = must(load_baseline(options.baseline_path));
    if (known_ && known_->simulated != machine_.links.simulated)
      throw tool_failure(format("%s was learnt on a %s GPU, and this one is not: learn again", options.baseline_path.c_str(),
                                known_->simulated ? "simulated" : "real"));
    result_.is_busy = is_in_use(machine_);
  }

  const machine_state& machine() const { return machine_; }
  const outcome& result() const { return result_; }

  void run() {
    result_.findings = judge_state(machine_, reference());
    result_.only_passive = options_.passive || result_.is_busy;
    if (result_.is_busy) add({level::note, "in_use", -1, "another process has a GPU: only the passive part ran", 0, 0});
    if (!result_.only_passive) measure();
    conclude();
  }

  void refuse() {
    result_.only_passive = true;
    add({level::unknown, "in_use", -1, "another process has a GPU", 0, 0});
    conclude();
  }

  // Fails on a machine that is broken without any comparison. Its rates are what is learnt, whatever the model says of them.
  void learn_to_file() {
    if (result_.is_busy) throw tool_failure("another process has a GPU: learn on an idle machine", kExitInUse);
    std::vector<std::vector<reading>> runs;
    for (std::int64_t i = 0; i < options_.runs; ++i) {
      measurer ways(gpus_, machine_.links, deadline_of(options_, gpus_.count()));
      runs.push_back(ways.run());
      if (ways.missed() > 0)
        throw tool_failure(format("%u checks had no time: give a larger --budget", ways.missed()), kExitUnknown);
      if (i > 0) continue;
      result_.findings = judge_state(machine_, nullptr);
      for (const reading& one : runs[0])
        if (one.outcome == reading::state::wrong || one.outcome == reading::state::failed)
          add({level::unfit, one.name, one.gpu, one.reason, 0, 0});
      conclude();
      if (result_.worst == level::unfit)
        throw tool_failure(one_line(result_, machine_.links.gpus.size()) + "; only a good machine can be learnt from",
                           kExitUnfit);
    }
    baseline learnt = learn(machine_, runs);
    if (options_.add) learnt = must(joined(must(load_baseline(options_.learn_path)), learnt));
    write_whole(options_.learn_path, to_json(learnt).dump(1) + "\n");
    result_.readings = runs.back();
    print_baseline(learnt);
  }

 private:
  const baseline* reference() const { return known_ ? &*known_ : nullptr; }
  void add(finding one) { result_.findings.push_back(std::move(one)); }

  void measure() {
    measurer ways(gpus_, machine_.links, deadline_of(options_, gpus_.count()));
    result_.readings = ways.run();
    const judge_options chances{options_.false_alarm};
    auto found = judge_readings(machine_, result_.readings, reference(), chances);
    for (unsigned repeat = 0; repeat < kMaxRepeats; ++repeat) {
      // Low itself, or among the rates of a GPU that are low together.
      const auto is_low = [&](std::size_t i) {
        const reading& one = result_.readings[i];
        if (one.outcome != reading::state::measured || !has_threshold(one)) return false;
        return found[i].severity >= level::unknown ||
               std::any_of(found.begin() + static_cast<std::ptrdiff_t>(result_.readings.size()), found.end(),
                           [&one](const finding& all) { return all.severity >= level::unknown && all.gpu == one.gpu; });
      };
      bool any = false;
      for (std::size_t i = 0; i < result_.readings.size(); ++i) any = any || is_low(i);
      if (!any) break;
      std::this_thread::sleep_for(kFirstPause * (1u << repeat));
      for (std::size_t i = 0; i < result_.readings.size(); ++i) {
        if (!is_low(i)) continue;
        reading fresh = ways.again(result_.readings[i]);
        if (fresh.outcome != reading::state::measured || fresh.value > result_.readings[i].value)
          result_.readings[i] = std::move(fresh);
      }
      found = judge_readings(machine_, result_.readings, reference(), chances);
    }
    for (finding& one : found) add(std::move(one));
    if (ways.missed() > 0)
      add({level::unknown, "time", -1, format("%u checks had no time: give a larger --budget", ways.missed()), 0, 0});
    compare_counters();
  }

  // Errors that the traffic itself made.
  void compare_counters() {
    const auto after = bandwidth::read_links(gpus_);
    for (std::size_t gpu = 0; gpu < after.gpus.size(); ++gpu) {
      const auto& before = machine_.links.gpus[gpu];
      const auto& now = after.gpus[gpu];
      if (now.ecc_uncorrected > before.ecc_uncorrected)
        add({level::unfit, "ecc", static_cast<int>(gpu), "uncorrected ECC errors came while it was tested", 0, 0});
      if (now.pcie_replays > before.pcie_replays || now.pcie_corrected > before.pcie_corrected)
        add({level::unfit, "pcie_errors", static_cast<int>(gpu),
             format("%llu PCIe replays and %llu corrected errors came while it was tested: reseat it, look at the riser",
                    static_cast<unsigned long long>(now.pcie_replays - before.pcie_replays),
                    static_cast<unsigned long long>(now.pcie_corrected - before.pcie_corrected)),
             0, 0});
    }
  }

  void conclude() {
    std::stable_sort(result_.findings.begin(), result_.findings.end(),
                     [](const finding& a, const finding& b) { return a.severity > b.severity; });
    result_.worst = result_.findings.empty() ? level::ok : result_.findings.front().severity;
    result_.seconds = static_cast<double>(monotonic_ns() - begin_ns_) / 1e9;
  }

  void print_baseline(const baseline& learnt) const {
    std::printf("%-44s %8s  %s\n", "learnt", "GB/s", "a loss is found from");
    const auto figures_in_all = static_cast<double>(learnt.figures.size() + learnt.gpus.size());
    const double chance = options_.false_alarm / std::max(figures_in_all, 1.0);
    const auto print = [chance](const std::string& key, const baseline_figures& figures, bool is_rate) {
      double mean = 0;
      for (const double one : figures.values) mean += one / static_cast<double>(figures.values.size());
      const auto least = least_value(figures, chance);
      std::printf("%-44s %8s  %s\n", key.c_str(), is_rate ? format("%.3g", mean).c_str() : "",
                  least ? format("%.1f %%", 100 * (1 - *least / mean)).c_str() : "never: it scatters too much");
    };
    for (const auto& [key, figures] : learnt.figures) print(key, figures, true);
    for (const auto& [bus_id, figures] : relative_figures(learnt)) print(kRelative + ("/" + bus_id), figures, false);
    std::printf("\nwritten to %s: %s of %s\n", options_.learn_path.c_str(),
                plural(static_cast<std::uint64_t>(options_.runs), "run").c_str(), plural(learnt.gpus.size(), "GPU").c_str());
  }

  const gate_options& options_;
  bandwidth::gpu_set& gpus_;
  const std::uint64_t begin_ns_;
  const machine_state machine_;
  std::optional<baseline> known_;
  outcome result_;
};

int exit_code(const outcome& result, const gate_options& options) {
  const bool is_unfit = result.worst == level::unfit, is_unknown = result.worst == level::unknown;
  if (options.codes == "npd") return is_unfit ? 1 : is_unknown ? 2 : 0;
  if (options.codes == "prolog") return is_unfit ? 1 : 0;
  return is_unfit ? kExitUnfit : is_unknown ? result.is_busy && options.refuse_in_use ? kExitInUse : kExitUnknown : kExitOk;
}

void write_rows(report& out, const outcome& result, const machine_state& machine, const gate_options& options) {
  auto& file = out.file();
  file.set_unit("value", "GB/s");
  file.set_parameter("baseline", options.baseline_path);
  file.set_parameter("false_alarm", options.false_alarm);
  file.set_parameter("in_use", result.is_busy);
  file.set_parameter("only_passive", result.only_passive);
  file.set_parameter("seconds", result.seconds);
  file.set_parameter("verdict", one_line(result, machine.links.gpus.size()));
  for (const finding& one : result.findings)
    file.add_row({{"kind", "finding"},
                  {"state", to_string(one.severity)},
                  {"check", one.check},
                  {"gpu", one.gpu},
                  {"reason", one.reason},
                  {"value", one.value},
                  {"limit", one.limit}});
  for (const reading& one : result.readings) {
    if (one.outcome == reading::state::measured && !one.samples.empty())
      file.add_samples(key_of(machine, one), one.samples, "GB/s");
  }
  file.set_pass(result.worst < level::unknown);
}

void print(const outcome& result, const machine_state& machine, const gate_options& options) {
  const std::string line = one_line(result, machine.links.gpus.size());
  if (!options.prometheus_path.empty()) write_whole(options.prometheus_path, prometheus_text(result, machine));
  if (options.output == "prometheus") std::fputs(prometheus_text(result, machine).c_str(), stdout);
  if (options.output == "text") std::printf("%s\n", table_text(result).c_str());
  if (options.output != "prometheus") std::printf("%s\n", line.c_str());
}

// A machine whose driver does not answer has a verdict too.
int without_gpus(const std::string& reason, const gate_options& options) {
  outcome result;
  result.worst = level::unfit;
  result.findings.push_back({level::unfit, "driver", -1, reason, 0, 0});
  print(result, {}, options);
  return exit_code(result, options);
}

}  // namespace

int run_gate(const invocation& call) {
  gate_options options;
  if (const auto code = parse(call, options)) return *code;
  if (const auto chosen = choose_gpu(); !chosen) return without_gpus(chosen.error().message, options);
  const auto cuda = cu::driver();
  if (!cuda) return without_gpus(cuda.error().message, options);
  if (auto ready = cu::initialize(**cuda); !ready) return without_gpus(ready.error().message, options);
  auto gpus = bandwidth::gpu_set::open(**cuda);
  if (!gpus) return without_gpus(gpus.error().message, options);
  if ((*gpus)->count() == 0) return without_gpus("the driver sees no GPU", options);
  report out(call, options.common, "gate");
  machine_facts facts = describe_host();
  describe_gpu(facts, (*gpus)->cuda(), 0);
  out.file().set_machine(facts);
  if (options.output == "text") print_header_if_simulated();
  gate_run one(options, **gpus);
  if (!options.learn_path.empty()) {
    one.learn_to_file();
    return kExitOk;
  }
  if (one.result().is_busy && options.refuse_in_use) one.refuse();
  else one.run();
  print(one.result(), one.machine(), options);
  write_rows(out, one.result(), one.machine(), options);
  out.write();
  return exit_code(one.result(), options);
}

}  // namespace pl::tools
