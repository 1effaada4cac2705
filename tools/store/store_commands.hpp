// SPDX-License-Identifier: Apache-2.0
// The subcommands of `peerlane store`. Each parses, talks to the store, prints, and returns the exit code.
#pragma once

#include "tools/common/tool.hpp"

namespace pl::store_tools {

int run_serve(const tools::invocation& call);
int run_put(const tools::invocation& call);
int run_get(const tools::invocation& call);
int run_multi_put(const tools::invocation& call);
int run_multi_get(const tools::invocation& call);
int run_exists(const tools::invocation& call);
int run_watch(const tools::invocation& call);
int run_ls(const tools::invocation& call);
int run_find(const tools::invocation& call);
int run_stat(const tools::invocation& call);
int run_rm(const tools::invocation& call);
int run_pool(const tools::invocation& call);
int run_quota(const tools::invocation& call);
int run_sync(const tools::invocation& call);
int run_top(const tools::invocation& call);
int run_stats(const tools::invocation& call);
int run_perf(const tools::invocation& call);
int run_check(const tools::invocation& call);
int run_repair(const tools::invocation& call);
int run_backup(const tools::invocation& call);
int run_restore(const tools::invocation& call);
int run_cluster(const tools::invocation& call);
int run_gpu_direct_demo(const tools::invocation& call);
int run_crash_demo(const tools::invocation& call);

}  // namespace pl::store_tools
