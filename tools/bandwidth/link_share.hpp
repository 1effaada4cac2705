// SPDX-License-Identifier: Apache-2.0
// What transfers that run at the same time should reach: which ways each takes, and what the others leave of them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tools/bandwidth/judgement.hpp"

namespace pl::bandwidth {

struct shared_expectations {
  std::vector<std::optional<expectation>> each;  // in the order given
  std::optional<expectation> total;              // of all together
};

// Every transfer alone would reach what expect() says. A way (one direction of a PCIe link, of the uplink that several GPUs
// share, of a GPU's NVLinks; the memory of a GPU) carries what the best of its users would reach alone; users share it
// equally, but nobody gets more than alone, and what one cannot use goes to the others (max-min fairness).
//
// Nothing for a transfer without an expectation, for those that share a way with it, and for the total then. Nothing for one
// direction of PCIe that is busy both ways, which the root complex divides as it likes; the total counts it.
shared_expectations expect_together(const machine_links& links, std::span<const transfer_path> paths);

}  // namespace pl::bandwidth
