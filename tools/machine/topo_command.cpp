// SPDX-License-Identifier: Apache-2.0
// peerlane topo: the connections between GPUs and network adapters, the best pairs, and obstacles.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/report.hpp"
#include "tools/common/temporary_folder.hpp"
#include "tools/common/terminal.hpp"
#include "tools/common/tool.hpp"
#include "tools/machine/checks.hpp"
#include "tools/machine/live_gpus.hpp"
#include "tools/machine/recording.hpp"
#include "tools/machine/sysfs_text.hpp"

namespace pl::tools {
namespace {

namespace fs = std::filesystem;
using namespace topo;

struct topo_options {
  common_options common;
  std::string sysfs;  // a folder, or a recording; empty: this machine
  std::string record;
  std::int64_t ranks = 0;  // 0: one for each GPU
  bool is_strict = false;
  bool is_matrix_only = false;
};

machine load_recording(const std::string& file) {
  constexpr std::size_t kMaxBytes = std::size_t{64} << 20;  // the largest machine of ours takes 0.2 MB
  const auto text = read_whole_file(file, kMaxBytes);
  if (!text) throw tool_failure(format("--sysfs: %s cannot be read: %s", file.c_str(), text.error().message.c_str()));
  const temporary_folder folder("topo");
  if (const auto expanded = expand_recording(*text, folder.path()); !expanded)
    throw tool_failure(format("--sysfs: %s: %s; peerlane topo --record FILE writes a recording", file.c_str(),
                              expanded.error().message.c_str()));
  return read_machine(folder.path());
}

machine load_machine(const topo_options& options) {
  if (options.sysfs.empty()) {
    machine out = read_machine("/sys");
    add_live_gpus(out);
    return out;
  }
  std::error_code problem;
  const bool is_folder = fs::is_directory(options.sysfs, problem);
  if (problem) throw tool_failure(format("--sysfs: %s: %s", options.sysfs.c_str(), problem.message().c_str()));
  if (!is_folder) return load_recording(options.sysfs);
  if (!fs::is_directory(fs::path(options.sysfs) / "bus/pci/devices", problem))
    throw tool_failure(
        format("--sysfs: %s is neither a recorded machine nor a folder with bus/pci/devices", options.sysfs.c_str()));
  return read_machine(options.sysfs);
}

void save(const std::string& text, const std::string& path) {
  if (const status written = write_whole_file(path, text); !written)
    throw tool_failure(format("cannot write %s: %s", path.c_str(), written.error().message.c_str()));
  std::fprintf(stderr, "recorded in %s\n", without_controls(path, text_kind::name).c_str());
}

const char* severity_name(severity level) {
  return level == severity::ok ? "ok" : level == severity::note ? "note" : "BLOCKER";
}

void put_endpoints(const machine& all, const relation_matrix& matrix, result_file& out) {
  for (const auto& one : matrix.endpoints) {
    const auto& device = *one.device;
    const auto narrowest = all.tree.narrowest_link(device);
    out.add_row({{"kind", "device"},
                 {"label", one.label},
                 {"name", one.name},
                 {"bus_id", device.address},
                 {"numa_node", device.numa_node},
                 {"cpus", device.local_cpus.empty() ? "unknown" : device.local_cpus},
                 {"link_gt_per_s", device.link_now.gt_per_s},
                 {"link_width", device.link_now.width},
                 {"link_max_gt_per_s", device.link_max.gt_per_s},
                 {"link_max_width", device.link_max.width},
                 {"path_gt_per_s", narrowest.gt_per_s},
                 {"path_width", narrowest.width}});
  }
}

void put_relations(const relation_matrix& matrix, result_file& out) {
  for (std::size_t row = 0; row < matrix.endpoints.size(); ++row)
    for (std::size_t column = 0; column < matrix.endpoints.size(); ++column)
      out.add_row({{"kind", "relation"},
                   {"from", matrix.endpoints[row].label},
                   {"to", matrix.endpoints[column].label},
                   {"relation", to_string(matrix.cells[row][column])}});
}

void print_matrix(const machine& all, const relation_matrix& matrix) {
  std::fputs(render(matrix).c_str(), stdout);
  if (all.gpus.empty()) std::printf("\nno NVIDIA GPU on this machine\n");
  std::printf("\nNUMA nodes:\n\n");
  for (const auto& node : all.nodes)
    std::printf("  node %d: %s\n", node.number, node.cpus.empty() ? "memory alone" : ("CPUs " + node.cpus).c_str());
  if (all.nodes.empty()) std::printf("  this kernel shows none\n");
}

void print_advice(const machine& all, const std::vector<gpu_advice>& advice, int ranks, result_file& out) {
  if (advice.empty()) return;
  std::printf("\nAdvice:\n\n");
  for (const auto& sentence : explain(all, advice)) {
    std::printf("  %s\n", sentence.c_str());
    out.add_row({{"kind", "advice"}, {"text", sentence}});
  }
  std::printf("\nReady lines for %d rank%s:\n\n", ranks, ranks == 1 ? "" : "s");
  for (const auto& line : ready_lines(all, advice, ranks)) {
    const std::string rank_text = line.rank < 0 ? "all" : "rank " + std::to_string(line.rank);
    std::printf("  %-8s  %-7s  %s\n", line.stack.c_str(), rank_text.c_str(), line.text.c_str());
    out.add_row({{"kind", "line"}, {"stack", line.stack}, {"rank", line.rank}, {"text", line.text}});
  }
}

bool print_checks(const std::vector<finding>& findings, result_file& out) {
  std::printf("\nChecks:\n\n");
  for (const auto& one : findings) {
    const colour shade = one.level == severity::ok     ? colour::good
                         : one.level == severity::note ? colour::warning
                                                       : colour::bad;
    std::printf("  %s %-14s %s%s\n", paint(shade, format("%-8s", severity_name(one.level))).c_str(), one.subject.c_str(),
                one.message.c_str(), one.fix.empty() ? "" : (" -> " + one.fix).c_str());
    out.add_row({{"kind", "check"},
                 {"level", severity_name(one.level)},
                 {"subject", one.subject},
                 {"what", one.message},
                 {"fix", one.fix}});
  }
  return is_ready(findings);
}

void add_options(command_parser& parser, topo_options& options) {
  parser.common(options.common, false);
  parser.text("--sysfs", "PATH", options.sysfs,
              "Show a recorded machine: a file from --record, or a folder laid out like /sys");
  parser.text(
      "--record", "FILE", options.record,
      "Record this machine's topology to FILE, - is standard output (no serial numbers, MAC addresses or host names)");
  parser.integer("-n,--ranks", options.ranks, 0, 4096, "Number of processes to place on this machine; 0: one for each GPU");
  parser.flag("-m,--matrix", options.is_matrix_only, "Print the matrix only");
  parser.flag("--strict", options.is_strict, "Exit code 1 if there is a BLOCKER");
}

}  // namespace

int run_topo(const invocation& call) {
  topo_options options;
  command_parser parser(call,
                        "Shows how GPUs, network adapters and NUMA nodes are connected (like nvidia-smi topo -m), which "
                        "adapter and CPUs each GPU should use, and what prevents fast transfers, with the fix");
  add_options(parser, options);
  if (const auto code = parser.parse()) return *code;
  report out(call, options.common, "topo");
  const machine all = load_machine(options);
  if (options.record == "-") {  // the recording, and nothing else
    std::fputs(write_recording(all).c_str(), stdout);
    return kExitOk;
  }
  if (!options.record.empty()) save(write_recording(all), options.record);
  if (all.is_simulated) print_header_if_simulated();
  const auto matrix = relate_all(all);
  print_matrix(all, matrix);
  put_endpoints(all, matrix, out.file());
  put_relations(matrix, out.file());
  const int ranks = options.ranks > 0 ? static_cast<int>(options.ranks) : static_cast<int>(all.gpus.size());
  out.file().set_parameter("ranks", ranks);
  bool has_no_blocker = true;
  if (!options.is_matrix_only) {
    const auto advice = advise(all);
    print_advice(all, advice, ranks, out.file());
    has_no_blocker = print_checks(check(all, advice, ranks), out.file());
  }
  const bool passed = has_no_blocker || !options.is_strict;
  out.file().set_pass(passed);
  machine_facts facts = out.machine();
  facts.simulated = all.is_simulated;
  out.file().set_machine(facts);
  out.write();
  return passed ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
