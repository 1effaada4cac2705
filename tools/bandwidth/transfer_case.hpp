// SPDX-License-Identifier: Apache-2.0
// A line of --transfer as a testcase.
#pragma once

#include <vector>

#include "tools/bandwidth/case_plan.hpp"

namespace pl::bandwidth {

// Every transfer's own rate and, of several, the total over their common window.
case_plan plan_transfers(const std::vector<transfer_spec>& transfers);

}  // namespace pl::bandwidth
