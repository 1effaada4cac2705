// SPDX-License-Identifier: Apache-2.0
#include "copy/calibration.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/env.hpp"
#include "base/fnv1a.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "copy/worker_pool.hpp"

namespace pl::copy {
namespace {

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line.empty() ? "unknown" : line;
}

std::string bus_id_of(const cu::driver_table& cuda, int device_ordinal) {
  cu::device_t device = 0;
  char text[32] = "";
  if (cuda.cuDeviceGet(&device, device_ordinal) != cu::error_code::success ||
      cuda.cuDeviceGetPCIBusId(text, sizeof text, device) != cu::error_code::success)
    return {};
  std::string out = text;
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return out;
}

std::string key_line(const std::string& key) { return "machine " + key; }

}  // namespace

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  return "unknown";
}

std::vector<int> cpus_near_device(const cu::driver_table& cuda, int device_ordinal) {
  const std::string bus_id = bus_id_of(cuda, device_ordinal);
  return bus_id.empty() ? std::vector<int>{} : cpus_near(bus_id.c_str());
}

std::string machine_key(const cu::driver_table& cuda, int device_ordinal) {
  cu::device_t device = 0;
  char name[128] = "";
  if (cuda.cuDeviceGet(&device, device_ordinal) != cu::error_code::success ||
      cuda.cuDeviceGetName(name, sizeof name, device) != cu::error_code::success)
    return {};
  const std::string sysfs = "/sys/bus/pci/devices/" + bus_id_of(cuda, device_ordinal);
  // The fastest link that slot and card support: the current one is slower while the GPU is idle.
  return format("gpu=%s cuda=%d driver=%s cpu=%s link=%s x%s", name, cuda.driver_version,
                cuda.is_simulated ? "simulated" : read_line("/sys/module/nvidia/version").c_str(), cpu_model().c_str(),
                read_line(sysfs + "/max_link_speed").c_str(), read_line(sysfs + "/max_link_width").c_str());
}

std::string calibration_path(const std::string& key) {
  std::string base = env_read("XDG_CACHE_HOME").text;
  if (!base.starts_with('/')) {
    const std::string home = env_read("HOME").text;
    if (!home.starts_with('/')) return {};
    base = home + "/.cache";
  }
  return format("%s/peerlane/calibration-%016llx.txt", base.c_str(), static_cast<unsigned long long>(fnv1a(key)));
}

namespace {

constexpr unsigned kFileMode = 0644, kFolderMode = 0700;  // also if the umask allows everybody to write

failure cannot_write(const std::string& path, int code) {
  return failure{code, format("cannot write the calibration to %s: %s; set XDG_CACHE_HOME to a folder that can be written",
                              path.c_str(), std::strerror(code))};
}

// Creates the cache's folder and ours in it. Existing folders are fine, and failures show when the file is written.
// Creates nothing above: a missing home (/nonexistent of services) stays missing.
void make_folders(const std::string& path) {
  const auto ours = path.rfind('/');
  const auto cache = ours == 0 ? ours : path.rfind('/', ours - 1);
  for (const auto end : {cache, ours}) mkdir(path.substr(0, end).c_str(), kFolderMode);
}

}  // namespace

status write_calibration(const std::string& text, const std::string& path) {
  if (path.empty()) return failure{ENOENT, "no folder for a calibration: set XDG_CACHE_HOME or HOME"};
  make_folders(path);
  if (const status written = write_whole_file(path, text, kFileMode); !written) return cannot_write(path, written.code());
  return {};
}

status check_calibration_path(const std::string& path) {
  const std::string trial = format("%s.%d.trial", path.c_str(), static_cast<int>(getpid()));
  if (path.empty()) return write_calibration("", path);
  if (const status written = write_calibration("", trial); !written) return cannot_write(path, written.code());
  unlink(trial.c_str());
  return {};
}

status save_costs(const cost_table& table, const std::string& key, const std::string& path) {
  std::string text = table.text();
  text.insert(text.find('\n') + 1, key_line(key) + "\n");
  return write_calibration(text, path);
}

result<found_costs> find_costs(const cu::driver_table& cuda, const std::string& text) {
  if (!text.empty()) {
    auto parsed = cost_table::parse(text);
    if (!parsed) return failure{EINVAL, "the given costs: " + parsed.error().message};
    return found_costs{*std::move(parsed), "given"};
  }
  const std::string key = machine_key(cuda, 0);
  const std::string path = key.empty() ? std::string{} : calibration_path(key);
  if (const auto content = read_whole_file(path, kMaxCalibrationBytes); content && !path.empty()) {
    auto parsed = cost_table::parse(*content);
    if (parsed && content->find(key_line(key) + "\n") != std::string::npos) return found_costs{*std::move(parsed), path};
    PL_LOG(warn, "%s is passed over: %s; run peerlane calibrate", path.c_str(),
           parsed ? "it is from another machine" : parsed.error().message.c_str());
  }
  return found_costs{cost_table::built_in(), "built in (peerlane calibrate measures this machine)"};
}

}  // namespace pl::copy
