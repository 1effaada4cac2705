// SPDX-License-Identifier: Apache-2.0
// CPU binding of a rank's thread. Libraries do not bind unless asked to. A thread on the remote socket pays extra for each
// read through BAR1 and for each cache line of a shm queue.
//
// Owns: nothing. Threads: any.
#pragma once

#include <span>
#include <string>

#include "os/cpu_list.hpp"

namespace pl::messaging {

struct rank_on_node {
  int rank = 0;
  int size = 0;  // 0: unknown
};

// The policy from PEERLANE_LINK_CPU, else from MVAPICH2's MV2_ENABLE_AFFINITY=0, MV2_CPU_MAPPING or MV2_CPU_BINDING_POLICY.
// Empty: none of them is set.
std::string cpu_policy_from_environment();

// Returns the CPUs of `allowed` that the policy assigns to a rank: all of them for "none" and "".
//   near      the CPUs in `near_gpu`; all CPUs if it is empty
//   bunch     one CPU per rank, consecutive from the first
//   scatter   one CPU per rank, spread over all CPUs
//   0-3,8     exactly these CPUs
//   0-3:8-11  one item for each rank of the node, in turn
// EINVAL: the policy cannot be parsed, or selects no allowed CPU.
result<cpu_numbers> cpus_of_policy(const std::string& policy, std::span<const unsigned> near_gpu,
                                   std::span<const unsigned> allowed, rank_on_node position);

// Binds the calling thread. Returns a description for logs, such as "0-15 (near the GPU)". Errors: as above, and errno
// values of the system.
result<std::string> bind_this_thread(const std::string& policy, std::span<const unsigned> near_gpu, rank_on_node position);

}  // namespace pl::messaging
