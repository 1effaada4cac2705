// SPDX-License-Identifier: Apache-2.0
// CPU binding of a rank's thread, off in libraries unless requested. A thread on the far socket pays for each read through
// BAR1 and for each cache line of a shm queue.
#pragma once

#include <span>
#include <string>

#include "os/cpu_list.hpp"

namespace pl::messaging {

struct rank_on_node {
  int rank = 0;
  int size = 0;  // 0: not known
};

// PEERLANE_LINK_CPU, or MVAPICH2's MV2_ENABLE_AFFINITY=0, MV2_CPU_MAPPING, MV2_CPU_BINDING_POLICY; empty: nothing is set.
std::string cpu_policy_from_environment();

// The CPUs of `allowed` that a policy gives to a rank; all of them for "none" and "".
//   near     those of `near_gpu`, or all where that is empty
//   bunch    one, counted from the first                 scatter  one, spread over all
//   0-3,8    these                                        0-3:8-11 an item for each rank of the node, in turn
// EINVAL: not understood, or none of them is allowed.
result<cpu_numbers> cpus_of_policy(const std::string& policy, std::span<const unsigned> near_gpu,
                                   std::span<const unsigned> allowed, rank_on_node position);

// Binds the calling thread. Returns the result as text for people: "0-15 (near the GPU)".
result<std::string> bind_this_thread(const std::string& policy, std::span<const unsigned> near_gpu, rank_on_node position);

}  // namespace pl::messaging
