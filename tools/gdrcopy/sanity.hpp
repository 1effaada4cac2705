// SPDX-License-Identifier: Apache-2.0
// Running sanity cases, each in a fresh process.
#pragma once

#include <string>
#include <vector>

#include "tools/gdrcopy/sanity_case.hpp"

namespace pl::tools {

enum class case_outcome { passed, failed, waived };

struct case_report {
  std::string name;
  case_outcome outcome = case_outcome::failed;
  std::string reason;  // of failing or waiving
  double seconds = 0;
};

// The entry of CUDA_VISIBLE_DEVICES (`list`; null: not set) that names GPU `ordinal` as a process under that list counts;
// empty if the list has no such entry.
std::string visible_entry(const char* list, int ordinal);

// Executes this program again for the one case, in its own process group, which is killed afterwards. A case that runs
// longer than `timeout_s` fails.
case_report run_case(const sanity_case& one, const case_context& context, int timeout_s);

constexpr int kDefaultCaseTimeoutS = 60;

}  // namespace pl::tools
