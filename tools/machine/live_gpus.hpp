// SPDX-License-Identifier: Apache-2.0
// What only the driver knows of this machine's GPUs: memory and NVLinks; also the simulated GPUs, which sysfs does not
// have.
#pragma once

#include "tools/machine/topo_machine.hpp"

namespace pl::tools::topo {

// Asks CUDA and NVML. Without a driver the GPUs stay as sysfs shows them. The simulated GPU is added only where sysfs has
// no GPU: a broken driver must not hide the real ones.
void add_live_gpus(machine& all);

}  // namespace pl::tools::topo
