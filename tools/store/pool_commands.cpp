// SPDX-License-Identifier: Apache-2.0
// peerlane store pool, ls, find, sync, stats.
#include <cinttypes>
#include <cstdio>

#include "base/text.hpp"
#include "store/engine/eviction.hpp"
#include "tools/store/files.hpp"
#include "tools/store/reach.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

using store_protocol::opcode;
using tools::presence;
using tools::tool_failure;

void print_pools(store_client::client& store) {
  std::printf("%-24s %10s %14s %14s %-10s %-4s %s\n", "pool", "keys", "bytes", "quota bytes", "durability", "shm", "access");
  for (const auto& one : tools::must(store.list_pools()))
    std::printf(
        "%-24s %10" PRIu64 " %14" PRIu64 " %14" PRIu64 " %-10s %-4s %s\n", printable(one.name).c_str(), one.keys, one.bytes,
        one.settings.size_bytes, one.settings.is_cache ? "cache" : store_protocol::name_of(one.settings.level),
        one.settings.allow_shm ? "yes" : "no", one.settings.access.empty() ? "everybody" : one.settings.access.c_str());
}

// Every key, a page at a time.
void print_keys(const reach_options& target, store_client::client& store, const std::string& pool_name,
                store_client::key_search search, std::uint64_t limit, bool lengthy) {
  const auto cluster = cluster_of(target, store);
  const auto pool = cluster ? pool_of(*cluster, pool_name) : pool_of(store, pool_name);
  for (std::uint64_t printed = 0;;) {
    const auto got = must(cluster ? cluster->find(pool, search) : store.run(store.make_find(pool, search)));
    for (const auto& one : tools::must(store_protocol::decode_keys(got.body))) {
      if (limit != 0 && printed++ >= limit) return;
      if (lengthy)
        std::printf("%14" PRIu64 " %10" PRIu64 "  %s\n", one.value_bytes, one.version, on_terminal(one.key).c_str());
      else std::printf("%s\n", on_terminal(one.key).c_str());
    }
    if (!got.more) return;
    search.after = got.fields->after.value_or("");
  }
}

}  // namespace

int run_ls(const tools::invocation& call) {
  reach_options target;
  std::string pool_name;
  bool lengthy = false;
  tools::command_parser parser(call, "Lists the pools, or the keys of a pool");
  parser.positional("POOL", presence::optional, pool_name, "Pool whose keys are listed [list the pools]");
  parser.flag("-l", lengthy, "Also print the size and version of each value");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  const auto store = reach(target);
  if (pool_name.empty()) print_pools(*store);
  else print_keys(target, *store, pool_name, {}, 0, lengthy);
  return tools::kExitOk;
}

int run_find(const tools::invocation& call) {
  reach_options target;
  std::string pool_name;
  store_client::key_search search;
  std::int64_t limit = 0;
  bool lengthy = false;
  tools::command_parser parser(call, "Searches keys by prefix or regular expression (POSIX extended), in order");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.text("--prefix", "PREFIX", search.prefix, "Only keys with this prefix");
  parser.text("--regex", "REGEX", search.regex, "Only keys that match this expression anywhere");
  parser.text("--after", "KEY", search.after, "Only keys after this one in order");
  parser.integer("--limit", limit, 0, INT64_MAX, "Maximum number of keys; 0: all");
  parser.flag("-l", lengthy, "Also print the size and version of each value");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  const auto store = reach(target);
  print_keys(target, *store, pool_name, search, static_cast<std::uint64_t>(limit), lengthy);
  return tools::kExitOk;
}

namespace {

// For a pool that is a cache.
struct cache_options {
  bool is_cache = false;
  std::int64_t ttl_ms = 0;
  std::string policy;
  store_protocol::cache_settings settings;

  void add(tools::command_parser& parser) {
    parser.flag("--cache", is_cache,
                "Make the pool a cache: values are volatile, and are evicted when the pool's share is full or other pools "
                "need the memory");
    parser.size("--cache-memory", settings.memory_bytes, "A cache's share of the server's memory [three quarters]");
    parser.size("--cache-disk", settings.disk_bytes, "Disk space for values that are evicted from a cache's memory [0]");
    parser.integer("--ttl-ms", "MILLISECONDS", ttl_ms, 0, INT64_MAX,
                   "Time after which a cache's values expire; 0: never [0]");
    parser.text("--eviction", "s3-fifo|lru", policy, "Eviction policy of a cache: s3-fifo or lru [s3-fifo]");
  }
  std::optional<store_protocol::cache_settings> get() {
    const bool given = settings.memory_bytes != 0 || settings.disk_bytes != 0 || ttl_ms != 0 || !policy.empty();
    if (!is_cache && given) throw tool_failure("--cache-memory, --cache-disk, --ttl-ms and --eviction need --cache");
    if (!is_cache) return std::nullopt;
    settings.ttl_ms = static_cast<std::uint64_t>(ttl_ms);
    const auto kind = policy.empty() ? store::eviction::s3_fifo : store::eviction_of(policy);
    if (!kind) throw tool_failure("give --eviction s3-fifo or lru");
    settings.policy = static_cast<std::uint8_t>(*kind);
    return settings;
  }
};

}  // namespace

int run_pool(const tools::invocation& call) {
  reach_options target;
  std::string action, name, level;
  store_protocol::pool_settings settings;
  cache_options cache;
  std::int64_t keys = 0;
  std::int64_t copies = 1;
  bool no_shm = false;
  tools::command_parser parser(call, "Creates, changes or deletes a pool");
  parser.choice("ACTION", presence::required, action, {"create", "set", "delete"}, "What to do with the pool");
  parser.positional("POOL", presence::required, name, "Pool");
  parser.text("--durability", "volatile|logged|durable", level,
              "What puts survive that name no durability: volatile, logged or durable [durable]");
  parser.size("--quota", settings.size_bytes, "Maximum size of all values; 0: no limit");
  parser.integer("--quota-keys", keys, 0, INT64_MAX, "Maximum number of keys; 0: no limit");
  parser.text(
      "--access", "LIST", settings.access,
      "Access list PRINCIPAL=RIGHTS,... with the rights r (read), w (write), a (administer) [everybody reads and writes]");
  parser.integer("--copies", copies, 1, store_client::kMaxCopies,
                 "In a cluster: number of servers that store each value [1]");
  parser.flag("--no-pool-shm", no_shm, "Do not let clients access this pool through shared memory");
  cache.add(parser);
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  settings.level = durability_option(level).value_or(store_protocol::durability::pool_default);
  const auto terms = cache.get();
  settings.max_keys = static_cast<std::uint64_t>(keys);
  settings.allow_shm = !no_shm;
  settings.copies = static_cast<std::uint8_t>(copies);
  const auto store = reach(target);
  const opcode op = action == "create" ? opcode::pool_create : action == "set" ? opcode::pool_set : opcode::pool_delete;
  const auto one = store->make_plain(op, 0, name);
  if (op != opcode::pool_delete) one->fields.settings = settings;
  if (op != opcode::pool_delete) one->fields.cache = terms;
  if (terms && (store->server_capabilities() & store_protocol::capability::cache) == 0)
    throw tool_failure("the server does not support caches: it is an earlier release");
  must(store->run(one));
  return tools::kExitOk;
}

int run_sync(const tools::invocation& call) {
  reach_options target;
  std::string name;
  tools::command_parser parser(call, "Waits until all acknowledged values of a pool are durable");
  parser.positional("POOL", presence::required, name, "Pool");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  const auto store = reach(target);
  if (const auto cluster = cluster_of(target, *store)) {
    must(cluster->sync(pool_of(*cluster, name)));
  } else {
    must(store->run(store->make_plain(opcode::sync, pool_of(*store, name), {})));
  }
  return tools::kExitOk;
}

int run_stats(const tools::invocation& call) {
  reach_options target;
  tools::command_parser parser(call, "Prints the server's metrics in Prometheus' text format");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  const auto store = reach(target);
  std::fputs(must(store->run(store->make_plain(opcode::stats, 0, {}))).body.c_str(), stdout);
  return tools::kExitOk;
}

}  // namespace pl::store_tools
