// SPDX-License-Identifier: Apache-2.0
// Two ranks, each in turn: receive, a kernel that uses what came, send. How long one such round trip takes by each way to
// say "go on" to the other side.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "result_file.hpp"
#include "station.hpp"

namespace pl::async {

enum class arm { normal, peer, peer_kernel, proxy };
const char* to_string(arm which);
arm arm_of(const std::string& word);  // throws tools::tool_failure

struct pingpong_plan {
  std::vector<arm> arms{arm::normal, arm::peer, arm::peer_kernel};
  std::vector<std::size_t> sizes{128};      // bytes, multiples of 8
  std::vector<std::uint64_t> kernel_ns{0};  // busy time of the kernel; 0: only its work
  int iterations = 10'000;
  int batch = 20;   // iterations queued at once
  int repeats = 5;  // turns of each arm, interleaved
};

// Collective. Prints on rank 0; `file` may be null. Exit code: 1 after wrong data.
int run_pingpong(station& at, const pingpong_plan& plan, result_file* file);

}  // namespace pl::async
