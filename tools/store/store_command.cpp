// SPDX-License-Identifier: Apache-2.0
// peerlane store: a persistent store of values, for host and GPU memory (docs/store.md).
#include "tools/common/subcommand.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

constexpr tools::subcommand kSubcommands[] = {
    {"serve", "serves the store in a directory", run_serve},
    {"put", "puts a file's bytes as a value", run_put},
    {"get", "writes a value's bytes into a file", run_get},
    {"multi-put", "puts many files by one call, or all or none", run_multi_put},
    {"multi-get", "writes many values into files", run_multi_get},
    {"exists", "which keys have values", run_exists},
    {"ls", "pools, or the keys of one", run_ls},
    {"find", "keys by prefix or regular expression", run_find},
    {"watch", "a line for each change of a pool's keys", run_watch},
    {"stat", "what is known of a value", run_stat},
    {"rm", "erases values, by key or prefix", run_rm},
    {"pool", "makes, changes or deletes a pool", run_pool},
    {"quota", "what principals hold, and may hold", run_quota},
    {"sync", "waits until a pool's acknowledged values are durable", run_sync},
    {"top", "what the server does now: requests, bytes, hits, connections", run_top},
    {"stats", "the server's metrics", run_stats},
    {"check", "says what is damaged in a stopped store's folder", run_check},
    {"repair", "makes a new store of what is good in a damaged one", run_repair},
    {"backup", "copies a stopped store's folder, and verifies the copy", run_backup},
    {"restore", "brings a backup into an empty folder, verified", run_restore},
    {"cluster", "shows a cluster of stores, and moves its slots", run_cluster},
    {"perf", "benchmark: kvstore-perf's tests, YCSB, a cache of large values", run_perf},
    {"gpu-direct-demo", "MCAS's example: a GPU buffer into the store and back, timed and verified", run_gpu_direct_demo},
    {"crash-demo", "a durable put from GPU memory, kill -9 of the server, and the value back, compared", run_crash_demo},
};

}  // namespace
}  // namespace pl::store_tools

namespace pl::tools {

int run_store(const invocation& call) { return run_subcommand(call, "subcommand", store_tools::kSubcommands); }

}  // namespace pl::tools
