// SPDX-License-Identifier: Apache-2.0
// peerlane store: a persistent store of values, for host and GPU memory (docs/store.md).
#include "tools/common/stack_limit.hpp"
#include "tools/common/subcommand.hpp"
#include "tools/common/tool.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

constexpr tools::subcommand kSubcommands[] = {
    {"serve", "runs a store server on a directory", run_serve},
    {"put", "stores a file as a value", run_put},
    {"get", "writes a value to a file", run_get},
    {"multi-put", "stores many files with one call, optionally all or none", run_multi_put},
    {"multi-get", "writes many values to files", run_multi_get},
    {"exists", "shows which keys have values", run_exists},
    {"ls", "lists the pools, or the keys of a pool", run_ls},
    {"find", "searches keys by prefix or regular expression", run_find},
    {"watch", "prints a line for each change in a pool", run_watch},
    {"stat", "shows the properties of a value, or the statistics of a pool", run_stat},
    {"rm", "erases values by key or prefix", run_rm},
    {"pool", "creates, changes or deletes a pool", run_pool},
    {"quota", "shows what principals store, and their quotas", run_quota},
    {"sync", "waits until all acknowledged values of a pool are durable", run_sync},
    {"top", "shows live activity: requests, bytes, hits, connections", run_top},
    {"stats", "prints the server's metrics", run_stats},
    {"check", "checks the folder of a stopped store for damage", run_check},
    {"repair", "makes a new store from the intact values of a damaged one", run_repair},
    {"backup", "copies the folder of a stopped store and verifies the copy", run_backup},
    {"restore", "restores a backup to an empty folder and verifies it", run_restore},
    {"cluster", "shows a cluster of stores and moves its slots", run_cluster},
    {"perf", "benchmarks a store: kvstore-perf's tests, YCSB, a cache of large values", run_perf},
    {"gpu-direct-demo", "MCAS's example: puts a GPU buffer into the store and gets it back, timed and verified",
     run_gpu_direct_demo},
    {"crash-demo",
     "puts a value durably from GPU memory, kills the server (kill -9), and compares the value after its restart",
     run_crash_demo},
};

}  // namespace
}  // namespace pl::store_tools

namespace pl::tools {

int run_store(const invocation& call) {
  if (auto enough = check_stack_limit(); !enough) throw tool_failure(enough.error().message);
  return run_subcommand(call, "subcommand", store_tools::kSubcommands);
}

}  // namespace pl::tools
