// SPDX-License-Identifier: Apache-2.0
// peerlane store put, get, stat, rm: values and files.
#include <cinttypes>
#include <cstdio>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/engine/eviction.hpp"
#include "tools/store/files.hpp"
#include "tools/store/open_store.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {

using tools::presence;
using tools::tool_failure;

int run_put(const tools::invocation& call) {
  reach_options target;
  condition_options condition;
  std::string pool_name, key, path, level;
  bool make_pool = false;
  std::int64_t ttl_ms = 0;
  tools::command_parser parser(call, "Stores a file as a value and prints the path taken and the durability reached");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::required, key, "Key");
  parser.positional("FILE", presence::required, path, "File; - is standard input");
  parser.text("--durability", "volatile|logged|durable", level,
              "What the put survives: volatile, logged or durable [the pool's setting]");
  parser.flag("--make-pool", make_pool, "Create the pool if it does not exist");
  parser.integer("--ttl-ms", "MILLISECONDS", ttl_ms, 0, INT64_MAX,
                 "For caches: time after which the value expires [the pool's setting]");
  condition.add(parser);
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  const auto file = file_memory::read(path);
  open_store store(target, pool_name, make_pool);
  store_client::put_request options;
  options.level = durability_option(level);
  options.only = condition.get();
  if (ttl_ms != 0) options.ttl_ms = static_cast<std::uint64_t>(ttl_ms);
  const auto got = must(store.put(key, {reinterpret_cast<std::uint64_t>(file.data()), file.size(), std::nullopt}, options));
  file.check_unchanged();
  if (got.result.has_crc && got.result.crc != arch::crc32c(file.data(), file.size()))
    throw tool_failure("the checksums of store and file differ: the file changed during the put");
  std::printf("put %s/%s: %s, %s\n", printable(pool_name).c_str(), printable(key).c_str(),
              plural(file.size(), "byte").c_str(), describe_reply(got).c_str());
  return tools::kExitOk;
}

int run_get(const tools::invocation& call) {
  reach_options target;
  std::string pool_name, key, path;
  std::uint64_t offset = 0, length = 0;
  bool verify = false;
  tools::command_parser parser(call, "Writes a value to a file");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::required, key, "Key");
  parser.positional("FILE", presence::required, path, "File; - is standard output");
  parser.size("--offset", offset, "Offset of the first byte");
  parser.size("--length", length, "Maximum number of bytes; 0: to the end");
  parser.flag("--verify", verify, "Let the store verify the value's checksum first");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  open_store store(target, pool_name);
  store_client::get_request options;
  options.offset = offset;
  options.verify = verify;
  std::string bytes;
  store_client::reply got;
  // The value may grow between the question for its length and the answer with its bytes.
  for (;;) {
    const auto known = must(store.stat(key)).result.value_bytes;
    std::uint64_t wanted = known > offset ? known - offset : 0;
    if (length != 0) wanted = std::min(wanted, length);
    bytes.resize(wanted);
    got = must(store.get(key, {reinterpret_cast<std::uint64_t>(bytes.data()), wanted, std::nullopt}, options));
    if (got.result.value_bytes <= known || length != 0) break;
  }
  bytes.resize(got.moved_bytes);
  const bool whole = offset == 0 && got.moved_bytes == got.result.value_bytes;
  if (whole && got.result.has_crc && arch::crc32c(bytes.data(), bytes.size()) != got.result.crc)
    throw tool_failure(format("%s/%s: the checksum does not match the value", pool_name.c_str(), key.c_str()));
  write_file(path, bytes);
  std::fprintf(path == "-" ? stderr : stdout, "get %s/%s: %s, %s\n", printable(pool_name).c_str(), printable(key).c_str(),
               plural(bytes.size(), "byte").c_str(), describe_reply(got).c_str());
  return tools::kExitOk;
}

namespace {

const char* name_of_policy(std::uint8_t number) {
  const bool known = number <= static_cast<std::uint8_t>(store::eviction::last);
  return known ? store::name_of(static_cast<store::eviction>(number)) : "unknown";
}

void print_pool(const reach_options& target, const std::string& name) {
  const auto connection = reach(target);
  const auto got = must(connection->run(connection->make_plain(store_protocol::opcode::pool_open, 0, name)));
  if (!got.fields->statistics) throw tool_failure("the server reports no statistics of pools: it is an earlier release");
  const auto& now = *got.fields->statistics;
  std::printf("keys %" PRIu64 "\nbytes %" PRIu64 "\nhits %" PRIu64 "\nmisses %" PRIu64 "\n", now.keys, now.bytes, now.hits,
              now.misses);
  const auto& cache = got.fields->cache_is;
  if (!cache) return;
  std::printf("evicted %" PRIu64 "\nevicted_bytes %" PRIu64 "\nexpired %" PRIu64 "\nspilled %" PRIu64 "\n", now.evicted,
              now.evicted_bytes, now.expired, now.spilled);
  std::printf("memory_bytes %" PRIu64 "\ndisk_bytes %" PRIu64 "\n", now.memory_bytes, now.disk_bytes);
  std::printf("eviction %s\nttl_ms %" PRIu64 "\n", name_of_policy(cache->policy), cache->ttl_ms);
}

}  // namespace

int run_stat(const tools::invocation& call) {
  reach_options target;
  std::string pool_name, key;
  tools::command_parser parser(call,
                               "Shows the properties of a value, or the statistics of a pool: hits, misses, evictions");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::optional, key, "Key [show the pool]");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  if (key.empty()) {
    print_pool(target, pool_name);
    return tools::kExitOk;
  }
  const auto got = must(open_store(target, pool_name).stat(key)).result;
  std::printf(
      "bytes %" PRIu64 "\nversion %" PRIu64 "\ncrc32c %08x\ndurability %s\nuser_flags %u\nwritten_unix_ns %" PRId64 "\n",
      got.value_bytes, got.version, got.crc, store_protocol::name_of(got.reached), got.user_flags, got.written_unix_ns);
  return tools::kExitOk;
}

int run_rm(const tools::invocation& call) {
  reach_options target;
  condition_options condition;
  std::string pool_name, prefix;
  std::vector<std::string> keys;
  bool force = false, is_atomic = false;
  tools::command_parser parser(call, "Erases values by key or prefix");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::optional, keys, "Keys");
  parser.text("--prefix", "PREFIX", prefix, "Erase all keys with this prefix and print their number");
  parser.flag("-f,--force", force, "Ignore keys that do not exist");
  parser.flag("--atomic", is_atomic, "Erase all keys or none");
  condition.add(parser, condition_options::of_erase);
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  if (keys.empty() == prefix.empty()) throw tool_failure("give keys or --prefix PREFIX: peerlane store rm POOL KEY...");
  open_store store(target, pool_name);
  if (!prefix.empty()) {
    if (is_atomic || condition.get()) throw tool_failure("--prefix cannot be combined with --atomic or --if-version");
    const auto erased = store.erase_prefix(prefix);
    std::printf("erased %s\n", plural(erased, "key").c_str());
    return tools::kExitOk;
  }
  std::vector<store_client::batch_entry> entries(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) entries[i].key = keys[i], entries[i].only = condition.get();
  const auto all = store.batch(store_protocol::opcode::batch_erase, entries, is_atomic);
  return report_failures(keys, all, force ? ENOENT : 0);
}

}  // namespace pl::store_tools
