// SPDX-License-Identifier: Apache-2.0
// The original's text output, line by line as programs parse it (docs/bandwidth-testcases.md). Every function returns whole
// lines.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/bandwidth/outcome.hpp"
#include "tools/bandwidth/testcase.hpp"

namespace pl::bandwidth {

// What the head of the output says.
struct compat_environment {
  int cuda_version = 0;  // 13000
  std::string driver_version;
  std::string host;
  std::vector<std::string> devices;    // "NVIDIA H100 80GB HBM3 (00000000:0a:00)"
  std::string group_library;           // of several processes; else empty
  std::vector<std::string> processes;  // "Process 0 (node1): device 0: ..." instead of devices
};

struct compat_style {
  bool verbose = false;
  bool perf_formatter = false;
  bool original_mistakes = false;
  bool small_buffer = false;  // below 512 MiB: a note
};

// "v0.10.0": the newest release whose behaviour is here.
extern const char* const kCompatVersion;
// Where the original states the variation: rates, and of several matrices the total.
bool has_variation(const matrix& one);
std::string compat_version_lines(const std::string& group_library);
std::string compat_list(std::span<const testcase> testcases);
std::string compat_head(const compat_environment& environment, const compat_style& style);
std::string compat_test(const test_outcome& outcome, const compat_style& style);
std::string compat_not_found(const std::string& asked);
std::string compat_closing();

// "NVIDIA H100 80GB HBM3 (00000000:0a:00)" from a bus id like "0000:0a:00.0".
std::string compat_device_name(const std::string& name, const std::string& bus_id);

// The main figures of a matrix, computed as the original does.
struct compat_figures {
  double sum = 0, min = 0, max = 0, average = 0;
  double variation = 0;  // from run to run: mean over the cells of each one's coefficient of variation over its samples
};
// With `original_mistakes` a cell without a value is the minimum, 0.
compat_figures figures_of(const matrix& one, bool original_mistakes);

}  // namespace pl::bandwidth
