// SPDX-License-Identifier: Apache-2.0
// From a recording to folders and links as sysfs has them.
#include <cerrno>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/text.hpp"
#include "tools/machine/recording.hpp"
#include "tools/machine/sysfs_text.hpp"

namespace pl::tools::topo {
namespace {

namespace fs = std::filesystem;

using attributes = std::map<std::string, std::string>;

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Recordings come from other people, so no name may lead out of the folder.
bool stays_inside(const std::string& path) {
  if (path.empty() || path.front() == '/') return false;
  for (const auto& part : fs::path(path))
    if (part == "..") return false;
  return true;
}

class expansion {
 public:
  explicit expansion(const std::string& folder) : root_(folder) {}

  // Empty if the line is valid, else its error.
  std::string add_line(const std::string& line) {
    const auto space = line.find(' ');
    const std::string word = line.substr(0, space), rest = space == std::string::npos ? "" : trimmed(line.substr(space));
    if (word == "let") return add_set(rest);
    if (word == "file") return add_file(rest);
    if (word == "device") return add_device(rest);
    return "it begins with none of let, file, device";
  }

 private:
  std::string add_set(const std::string& rest) {
    const auto equals = rest.find('=');
    if (equals == std::string::npos) return "expected: let NAME = ATTRIBUTES";
    return collect(rest.substr(equals + 1), sets_[trimmed(rest.substr(0, equals))]);
  }

  std::string add_file(const std::string& rest) {
    const auto equals = rest.find('=');
    if (equals == std::string::npos) return "expected: file PATH = TEXT";
    return write(trimmed(rest.substr(0, equals)), trimmed(rest.substr(equals + 1)));
  }

  // "a=b | @set | c=d" into `out`; later ones win.
  std::string collect(const std::string& text, attributes& out) {
    std::istringstream items(text);
    for (std::string item; std::getline(items, item, '|');) {
      item = trimmed(item);
      if (item.empty()) continue;
      const auto equals = item.find('=');
      if (item.front() == '@') {
        const auto set = sets_.find(item.substr(1));
        if (set == sets_.end()) return "no such set: " + item;
        for (const auto& [name, value] : set->second) out[name] = value;
      } else if (equals == std::string::npos) {
        return "\"" + item + "\" is neither NAME=VALUE nor @SET";
      } else {
        out[trimmed(item.substr(0, equals))] = trimmed(item.substr(equals + 1));
      }
    }
    return "";
  }

  std::string add_device(const std::string& rest) {
    const auto bar = rest.find('|');
    const std::string chain = trimmed(rest.substr(0, bar));
    const std::string address = fs::path(chain).filename().string();
    if (!is_pci_address(address) || !stays_inside(chain)) return "\"" + chain + "\" does not end in a PCI address";
    attributes values;
    if (const auto problem = bar == std::string::npos ? "" : collect(rest.substr(bar + 1), values); !problem.empty())
      return problem;
    const fs::path folder = fs::path("devices") / chain;
    std::error_code code;
    fs::create_directories(root_ / folder, code);
    if (const auto problem = link(fs::path("bus/pci/devices") / address, folder); !problem.empty()) return problem;
    return add_values(folder, values);
  }

  std::string add_values(const fs::path& folder, const attributes& values) {
    config_facts config;
    for (const auto& [name, value] : values) {
      std::string problem;
      const auto number = static_cast<unsigned>(leading_integer(value).value_or(0));
      if (name == "config") config.is_readable = value == "readable";
      else if (name == "config.device_control") config.device_control = number;
      else if (name == "config.acs") config.acs_bits = number;
      else if (name == "physfn")
        problem = stays_inside(value) ? link(folder / "physfn", fs::path("bus/pci/devices") / value) : value;
      else if (name == "iommu_group")
        problem = stays_inside(value) ? link(folder / name, fs::path("kernel/iommu_groups") / value) : value;
      else if (name == "bar1_bytes") problem = write((folder / "resource").string(), bar1_resource(value));
      else problem = write((folder / name).string(), value);
      if (!problem.empty()) return problem;
    }
    const auto bytes = make_config(config);
    std::ofstream out(root_ / folder / "config", std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return out ? "" : "its configuration space cannot be written";
  }

  // Region 2 of a board with a 64-bit region 0: memory, prefetchable, 64 bits.
  static std::string bar1_resource(const std::string& bytes) {
    const auto size = static_cast<unsigned long long>(leading_integer(bytes).value_or(0));
    const std::string none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
    const unsigned long long begin = 0x200000000000ull;
    return none + none + format("0x%016llx 0x%016llx 0x000000000014220c\n", begin, begin + size - 1) + none + none + none;
  }

  std::string write(const std::string& path, const std::string& text) {
    if (!stays_inside(path)) return "\"" + path + "\" leads out of the folder";
    make_parent(path);
    std::ofstream out(root_ / path);
    out << text << "\n";
    return out ? "" : "\"" + path + "\" cannot be written";
  }

  std::string link(const fs::path& source, const fs::path& destination) {
    make_parent(source);
    std::error_code code;
    // Absolute: `source` may pass through other links, from where a relative one could lead out of the folder.
    fs::create_symlink(fs::absolute(root_ / destination), root_ / source, code);
    return code ? "\"" + source.string() + "\" cannot be linked" : "";
  }

  // One existence check per file would take most of the time for thousands of files.
  void make_parent(const fs::path& path) {
    std::error_code code;
    if (made_.insert(path.parent_path()).second) fs::create_directories(root_ / path.parent_path(), code);
  }

  std::set<fs::path> made_;
  fs::path root_;
  std::map<std::string, attributes> sets_;
};

// "18 switch, 2 0000:07:00.0"
std::vector<nvlink_bundle> parse_nvlinks(const std::string& text) {
  std::vector<nvlink_bundle> out;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    std::istringstream words(item);
    nvlink_bundle one;
    std::string end;
    if (!(words >> one.count >> end)) continue;
    if (end == "switch") one.ends_at = nvlink_bundle::end::network_switch;
    else if (end != "unknown") one.ends_at = nvlink_bundle::end::gpu, one.bus_id = end;
    out.push_back(one);
  }
  return out;
}

}  // namespace

status expand_recording(const std::string& text, const std::string& folder) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  if (trimmed(line) != kRecordingHeader)
    return failure{EINVAL, format("not a recorded machine: the first line is not \"%s\"", kRecordingHeader)};
  expansion out(folder);
  for (int number = 2; std::getline(lines, line); ++number) {
    line = trimmed(line);
    if (line.empty() || line.front() == '#') continue;
    if (const auto problem = out.add_line(line); !problem.empty())
      return failure{EINVAL, format("line %d of the recorded machine: %s", number, problem.c_str())};
  }
  return {};
}

host_facts read_recorded_host(const std::string& folder) {
  host_facts out;
  read_host_files(folder + "/proc", folder, out);
  const fs::path facts = fs::path(folder) / "peerlane/host";
  if (const auto bytes = read_integer(facts / "shm_bytes")) out.shm_bytes = static_cast<std::uint64_t>(*bytes);
  if (const auto works = read_integer(facts / "cma_works")) out.cma_works = *works != 0;
  out.is_virtual_machine = read_integer(facts / "virtual_machine").value_or(0) != 0;
  return out;
}

void read_recorded_gpu(const std::string& folder, gpu& out) {
  const fs::path facts = fs::path(folder) / "peerlane/gpu" / out.address;
  out.memory_bytes = static_cast<std::uint64_t>(read_integer(facts / "memory_bytes").value_or(0));
  out.nvlinks = parse_nvlinks(read_text(facts / "nvlinks").value_or(""));
}

}  // namespace pl::tools::topo
