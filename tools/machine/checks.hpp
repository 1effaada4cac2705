// SPDX-License-Identifier: Apache-2.0
// What makes messages between GPUs slow or impossible on this machine, each with its fix.
#pragma once

#include <vector>

#include "tools/machine/advice.hpp"
#include "tools/machine/diagnosis.hpp"

namespace pl::tools::topo {

// In a fixed order; `ranks` is how many processes shall run on this machine.
std::vector<finding> check(const machine& all, const std::vector<gpu_advice>& advice, int ranks);

// Single checks, each adding at least one finding when its subject exists on the machine.
void check_acs(const machine& all, std::vector<finding>& out);
void check_iommu(const machine& all, std::vector<finding>& out);
void check_links(const machine& all, std::vector<finding>& out);
void check_adapter_settings(const machine& all, std::vector<finding>& out);
void check_ports(const machine& all, std::vector<finding>& out);
void check_gpudirect(const machine& all, std::vector<finding>& out);
void check_bar1(const machine& all, std::vector<finding>& out);
void check_limits(const machine& all, std::vector<finding>& out);
void check_sharing(const machine& all, int ranks, std::vector<finding>& out);
void check_numa(const machine& all, std::vector<finding>& out);

}  // namespace pl::tools::topo
