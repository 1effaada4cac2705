// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "os/unique_fd.hpp"
#include "tools/bandwidth/outcome.hpp"
#include "tools/gate/gate.hpp"

namespace pl::gate {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "peerlane-gate-baseline/1";

std::size_t hardware_xids(const machine_state& machine, const std::string& bus_id) {
  std::size_t count = 0;
  if (machine.xids)
    for (const xid_event& one : *machine.xids)
      if (needs_repair(one) && bus_id.starts_with(one.bus_id)) ++count;
  return count;
}

json to_json(const baseline_gpu& one) {
  return {{"name", one.name},
          {"pcie_generation", one.pcie_generation},
          {"pcie_width", one.pcie_width},
          {"nvlinks", one.nvlinks},
          {"sm_mhz", one.sm_mhz},
          {"memory_mhz", one.memory_mhz},
          {"bar1_bytes", one.bar1_bytes},
          {"memory_bytes", one.memory_bytes},
          {"ecc_uncorrected", one.ecc_uncorrected},
          {"hardware_xids", one.hardware_xids},
          {"numa_node", one.numa_node}};
}

baseline_gpu gpu_of(const json& one) {
  baseline_gpu out;
  one.at("name").get_to(out.name);
  one.at("pcie_generation").get_to(out.pcie_generation);
  one.at("pcie_width").get_to(out.pcie_width);
  one.at("nvlinks").get_to(out.nvlinks);
  one.at("sm_mhz").get_to(out.sm_mhz);
  one.at("memory_mhz").get_to(out.memory_mhz);
  one.at("bar1_bytes").get_to(out.bar1_bytes);
  one.at("memory_bytes").get_to(out.memory_bytes);
  one.at("ecc_uncorrected").get_to(out.ecc_uncorrected);
  one.at("hardware_xids").get_to(out.hardware_xids);
  one.at("numa_node").get_to(out.numa_node);
  return out;
}

// A rate of nothing, or scatter without end, would let every machine pass.
bool is_possible(const baseline_figures& one) {
  const auto is_rate = [](double value) { return std::isfinite(value) && value > 0; };
  return std::all_of(one.values.begin(), one.values.end(), is_rate) && std::isfinite(one.sample_scatter) &&
         one.sample_scatter >= 0;
}

// Whoever can write it decides which machines are fit.
status check_owner(int fd, const std::string& path) {
  struct stat facts {};
  if (fstat(fd, &facts) != 0) return failure{errno, path + ": " + errno_text(errno)};
  if (facts.st_uid != 0 && facts.st_uid != geteuid())
    return failure{EACCES, format("the baseline %s is the file of user %u: it must be yours, or root's", path.c_str(),
                                  static_cast<unsigned>(facts.st_uid))};
  if ((facts.st_mode & S_IWOTH) != 0)
    return failure{EACCES, format("every user can write the baseline %s: chmod o-w, and learn it again", path.c_str())};
  return {};
}

result<std::string> read_own(const std::string& path) {
  constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  const auto cannot = [&path](int code) {
    return failure{code, format("cannot read the baseline %s: %s; `peerlane gate --learn %s` on a good machine writes it",
                                path.c_str(), errno_text(code).c_str(), path.c_str())};
  };
  const unique_fd file(real_device_io(), open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return cannot(errno);
  if (auto fine = check_owner(file.get(), path); !fine) return fine.error();
  auto text = read_to_end(file.get(), kMaxBytes);
  if (!text) return cannot(text.code());
  return text;
}

}  // namespace

std::string key_of(const machine_state& machine, const reading& one) {
  const auto bus_id = [&](int gpu) { return machine.links.gpus.at(static_cast<std::size_t>(gpu)).bus_id; };
  return one.name + "/" + bus_id(one.gpu) + (one.peer >= 0 ? "/" + bus_id(one.peer) : "");
}

bool has_threshold(const reading& one) {
  if (one.name == "host_memory") return !one.is_simulated;
  return one.name != "mapping" && one.name != "channel" && one.name != "placement";
}

baseline learn(const machine_state& machine, const std::vector<std::vector<reading>>& runs) {
  baseline out;
  out.driver_version = machine.driver_version;
  out.simulated = machine.links.simulated;
  for (const auto& facts : machine.links.gpus) {
    baseline_gpu& one = out.gpus[facts.bus_id];
    one = {facts.name,
           facts.pcie_generation_max,
           facts.pcie_width_now,
           facts.nvlinks_active,
           facts.sm_clock_max_mhz,
           facts.memory_clock_max_mhz,
           facts.bar1_bytes,
           facts.memory_bytes,
           facts.ecc_uncorrected,
           hardware_xids(machine, facts.bus_id),
           facts.numa_node};
  }
  std::map<std::string, double> variances;
  for (const auto& run : runs)
    for (const reading& one : run) {
      const std::string key = key_of(machine, one);
      if (one.outcome == reading::state::unavailable) out.unavailable.insert(key);
      if (one.outcome != reading::state::measured || !has_threshold(one)) continue;
      out.figures[key].values.push_back(one.value);
      const double deviation = bandwidth::describe(one.samples).stddev;
      if (!one.samples.empty()) variances[key] += deviation * deviation / static_cast<double>(one.samples.size());
    }
  for (auto& [key, figures] : out.figures)
    figures.sample_scatter = std::sqrt(variances[key] / static_cast<double>(figures.values.size()));
  return out;
}

result<baseline> joined(const baseline& earlier, const baseline& later) {
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first && a.second.name == b.second.name; };
  if (earlier.driver_version != later.driver_version || earlier.simulated != later.simulated ||
      !std::equal(earlier.gpus.begin(), earlier.gpus.end(), later.gpus.begin(), later.gpus.end(), same))
    return failure{EINVAL, "--add: the file is from another machine or driver: learn again, without --add"};
  baseline out = later;
  for (auto& [key, figures] : out.figures) {
    const auto known = earlier.figures.find(key);
    if (known == earlier.figures.end()) continue;
    const auto then = static_cast<double>(known->second.values.size()), now = static_cast<double>(figures.values.size());
    const double squares = then * std::pow(known->second.sample_scatter, 2) + now * std::pow(figures.sample_scatter, 2);
    figures.sample_scatter = std::sqrt(squares / (then + now));
    figures.values.insert(figures.values.begin(), known->second.values.begin(), known->second.values.end());
  }
  return out;
}

json to_json(const baseline& known) {
  json gpus = json::object(), figures = json::object();
  for (const auto& [bus_id, one] : known.gpus) gpus[bus_id] = to_json(one);
  for (const auto& [key, one] : known.figures)
    figures[key] = {{"gb_per_s", one.values}, {"sample_scatter", one.sample_scatter}};
  return {{"schema", kSchema},  {"driver_version", known.driver_version}, {"simulated", known.simulated}, {"gpus", gpus},
          {"figures", figures}, {"unavailable", known.unavailable}};
}

result<baseline> parse_baseline(const std::string& text) {
  const auto wrong = [](const std::string& problem) {
    return failure{EINVAL, problem + "; a baseline is a file that `peerlane gate --learn` wrote on a good machine"};
  };
  const json file = json::parse(text, nullptr, false);
  if (file.is_discarded() || !file.is_object()) return wrong("not a baseline file");
  try {
    if (file.value("schema", "") != kSchema) return wrong("not a baseline file");
    baseline out;
    file.at("driver_version").get_to(out.driver_version);
    file.at("simulated").get_to(out.simulated);
    for (const auto& [bus_id, one] : file.at("gpus").items()) out.gpus[bus_id] = gpu_of(one);
    for (const auto& [key, one] : file.at("figures").items())
      out.figures[key] = {one.at("gb_per_s").get<std::vector<double>>(), one.at("sample_scatter").get<double>()};
    file.at("unavailable").get_to(out.unavailable);
    if (out.gpus.empty()) return wrong("it contains no GPU");
    for (const auto& [key, one] : out.figures)
      if (!is_possible(one)) return wrong(key + " has an impossible figure");
    return out;
  } catch (const json::exception& problem) {  // "[json.exception.out_of_range.403] key 'name' not found"
    const std::string said = problem.what();
    const auto name_end = said.find("] ");
    return wrong("a part is missing or of another type: " +
                 (name_end == std::string::npos ? said : said.substr(name_end + 2)));
  }
}

result<baseline> load_baseline(const std::string& path) {
  const auto text = read_own(path);
  if (!text) return text.error();
  auto out = parse_baseline(*text);
  if (!out) return failure{out.error().code, path + ": " + out.error().message};
  return out;
}

}  // namespace pl::gate
