// SPDX-License-Identifier: Apache-2.0
// Can these transfers be made, together, on this machine?
#pragma once

#include <span>
#include <string>

#include "tools/bandwidth/runner.hpp"

namespace pl::bandwidth {

// "H0 -> G1 by SM of GPU 1, 64 MiB": how errors name a transfer.
std::string describe(const bound_transfer& transfer);
// EINVAL with what could work instead. `will_verify`: no transfer may then write what another one reads or writes.
status check_transfers(gpu_set& gpus, std::span<const bound_transfer> transfers, bool will_verify);
// Whether driver calls for such a transfer may block the CPU, so that it cannot wait behind a gate: pageable memory,
// and copies between GPUs that cannot access each other.
bool blocks_the_cpu(const gpu_set& gpus, const bound_transfer& transfer);
// Opens the ways between GPUs that this transfer takes, or closes them if it must do without.
status prepare_peer_access(gpu_set& gpus, const bound_transfer& transfer);

}  // namespace pl::bandwidth
