// SPDX-License-Identifier: Apache-2.0
// The benchmarks' command lines. Each returns the exit code and throws tools::tool_failure.
#pragma once

#include "tools/common/tool.hpp"

namespace pl::async {

int run_pingpong_command(const tools::invocation& call);
int run_economy_command(const tools::invocation& call);
int run_stencil_command(const tools::invocation& call);
int run_multigrid_command(const tools::invocation& call);
int run_stopped_command(const tools::invocation& call);
int run_stuck_command(const tools::invocation& call);
int run_poke_command(const tools::invocation& call);
int run_cost_command(const tools::invocation& call);
int run_collectives_command(const tools::invocation& call);
int run_kernel_put_command(const tools::invocation& call);

}  // namespace pl::async
