// SPDX-License-Identifier: Apache-2.0
// Measuring the cost table on this machine, and keeping it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "copy/cost_table.hpp"
#include "cuda/driver_table.hpp"

namespace pl::copy {

class planner;

struct found_costs {
  cost_table table;
  std::string origin;  // source of the table, for display
};

// The cost table for a planner: `text` if not empty (EINVAL if it cannot be parsed), else this machine's calibration
// file, else the built-in table. A file that is damaged or from another machine is ignored and logged.
result<found_costs> find_costs(const cu::driver_table& cuda, const std::string& text);

// More than any calibration takes, which is some KiB.
constexpr std::size_t kMaxCalibrationBytes = std::size_t{1} << 20;

// Identifies the machine for which a calibration is valid: GPU, driver, CPU and PCIe link of a device, on one line.
// Empty without a GPU.
std::string machine_key(const cu::driver_table& cuda, int device_ordinal);
// $XDG_CACHE_HOME/peerlane/calibration-<hash of the key>.txt, or under ~/.cache. Empty if neither variable is an
// absolute path: with a relative one, a program started elsewhere would not find the file.
std::string calibration_path(const std::string& key);
// The CPU as /proc/cpuinfo names it, or "unknown".
std::string cpu_model();
// Writes a temporary file and renames it, so the file is never incomplete. Makes the folder. ENOENT: `path` is empty.
status write_calibration(const std::string& text, const std::string& path);
// Whether write_calibration could write there; asked before minutes are spent on measurements. Creates the folder, and
// leaves no file.
status check_calibration_path(const std::string& path);
// Writes the table with its key in the same way.
status save_costs(const cost_table& table, const std::string& key, const std::string& path);

// CPUs next to the device (worker_pool.hpp: cpus_near).
std::vector<int> cpus_near_device(const cu::driver_table& cuda, int device_ordinal);

struct calibration_options {
  int device_ordinal = 0;
  unsigned budget_ms = 6000;
  std::size_t most_bytes = 256u << 20;
  // Called before each point: its name, the number of finished points and the total.
  std::function<void(const std::string& subject, std::size_t done, std::size_t all)> progress;
};
// Measures every candidate that works on this machine. The device should be idle. ENOMEM if there is no room for the
// buffers (twice most_bytes of device memory).
result<cost_table> calibrate(const cu::driver_table& cuda, planner& planner, const calibration_options& wanted);

}  // namespace pl::copy
