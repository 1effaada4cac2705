// SPDX-License-Identifier: Apache-2.0
// CPU use of a process: the application, our proxy thread and the driver's threads together.
#pragma once

#include <cstdint>

namespace pl::async {

struct cpu_use {
  double seconds = 0;          // user and system time of all threads
  std::uint64_t switches = 0;  // voluntary context switches: a thread slept, and something woke it
  static cpu_use now();
};

}  // namespace pl::async
