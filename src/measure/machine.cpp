// SPDX-License-Identifier: Apache-2.0
#include "measure/machine.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <cctype>
#include <ctime>
#include <fstream>
#include <sstream>

#include "base/text.hpp"

namespace pl {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// "model name : X" on x86; arm64 kernels print part numbers only, so the device tree's or nothing.
std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

int cpu_clock_mhz() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq");
  int khz = 0;
  return file >> khz ? khz / 1000 : -1;
}

bool is_version(const std::string& word) {
  bool dot = false;
  for (const char c : word) {
    if (c == '.') dot = true;
    else if (!std::isdigit(static_cast<unsigned char>(c))) return false;
  }
  return dot && !word.empty();
}

}  // namespace

kernel_driver parse_kernel_driver(const std::string& proc_text) {
  kernel_driver out;
  std::istringstream lines(proc_text);
  std::string first;
  std::getline(lines, first);
  if (!first.starts_with("NVRM version:")) return out;
  out.flavor = first.find("Open Kernel Module") != std::string::npos ? "open" : "proprietary";
  std::istringstream words(first);
  for (std::string word; words >> word;)
    if (is_version(word)) {
      out.version = word;
      break;
    }
  return out;
}

kernel_driver read_kernel_driver() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::stringstream text;
  text << file.rdbuf();
  return parse_kernel_driver(text.str());
}

machine_facts describe_host() {
  machine_facts facts;
  facts.peerlane_version = PL_VERSION;
  facts.git_revision = kGitRevision;
  facts.utc_date = utc_now();
  utsname names{};
  if (uname(&names) == 0) facts.kernel = format("%s %s %s", names.sysname, names.release, names.machine);
  facts.cpu_model = cpu_model();
  facts.cpu_count = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  facts.cpu_clock_mhz = cpu_clock_mhz();
  return facts;
}

std::string pci_bus_id(const cu::driver_table& cuda, int ordinal) {
  char text[32] = "";
  cu::device_t device = 0;
  if (cuda.cuDeviceGetPCIBusId == nullptr || cuda.cuDeviceGet(&device, ordinal) != 0) return "";
  if (cuda.cuDeviceGetPCIBusId(text, sizeof text, device) != 0) return "";
  std::string out = text;
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

void describe_gpu(machine_facts& facts, const cu::driver_table& cuda, int ordinal) {
  facts.simulated = cuda.is_simulated;
  facts.cuda_version = cuda.driver_version;
  if (cuda.is_simulated) {
    facts.driver_version = facts.driver_flavor = "simulated";
  } else {
    const auto kernel = read_kernel_driver();
    facts.driver_version = kernel.version;
    facts.driver_flavor = kernel.flavor;
  }
  cuda.cuDeviceGetCount(&facts.gpu_count);
  cu::device_t device = 0;
  char name[256] = "";
  if (cuda.cuDeviceGet(&device, ordinal) == 0 && cuda.cuDeviceGetName(name, sizeof name, device) == 0) facts.gpu_name = name;
  if (const auto id = pci_bus_id(cuda, ordinal); !id.empty()) facts.gpu_bus_id = id;
}

}  // namespace pl
