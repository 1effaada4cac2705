// SPDX-License-Identifier: Apache-2.0
// Expected rates of transfers that run at the same time: the links that each uses, and its share of them.
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

// A transfer alone reaches what expect() says. A link use is one direction of a PCIe link, of an uplink that several GPUs
// share or of a GPU's NVLinks, or a GPU's memory. It carries what its fastest user would reach alone. Its users share it
// max-min fairly: equal shares, none above its rate alone, and the unused rest goes to the others.
//
// Nothing for a transfer without an expectation, for those that share a link with it, and for the total then. Nothing for
// one direction of PCIe that is busy both ways, which the root complex divides as it likes; the total counts it.
shared_expectations expect_together(const machine_links& links, std::span<const transfer_path> paths);

}  // namespace pl::bandwidth
