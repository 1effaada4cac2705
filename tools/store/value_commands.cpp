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
  tools::command_parser parser(call, "Puts a file's bytes as a value and says how they went and what they survive");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::required, key, "Key");
  parser.positional("FILE", presence::required, path, "File; - is standard input");
  parser.text("--durability", "volatile|logged|durable", level, "volatile, logged or durable [the pool's]");
  parser.flag("--make-pool", make_pool, "Make the pool if there is none of this name");
  parser.integer("--ttl-ms", "MILLISECONDS", ttl_ms, 0, INT64_MAX,
                 "Into a cache: the value is gone after so long [the pool's]");
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
  if (got.result.has_crc && got.result.crc != arch::crc32c(file.data(), file.size()))
    throw tool_failure("the store's checksum is not that of the file, which changed while it was put");
  std::printf("put %s/%s: %s, %s\n", pool_name.c_str(), key.c_str(), plural(file.size(), "byte").c_str(),
              describe_reply(got).c_str());
  return tools::kExitOk;
}

int run_get(const tools::invocation& call) {
  reach_options target;
  std::string pool_name, key, path;
  std::uint64_t offset = 0, length = 0;
  bool verify = false;
  tools::command_parser parser(call, "Writes a value's bytes into a file");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::required, key, "Key");
  parser.positional("FILE", presence::required, path, "File; - is standard output");
  parser.size("--offset", offset, "From this byte on");
  parser.size("--length", length, "At most so many; 0: to the end");
  parser.flag("--verify", verify, "Have the store hold the value against its checksum first");
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
    throw tool_failure(format("%s/%s: the bytes are not those that were put (checksum)", pool_name.c_str(), key.c_str()));
  write_file(path, bytes);
  std::fprintf(path == "-" ? stderr : stdout, "get %s/%s: %s, %s\n", pool_name.c_str(), key.c_str(),
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
  if (!got.fields->statistics) throw tool_failure("the server tells nothing of its pools: it is of an earlier release");
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
  tools::command_parser parser(call, "What is known of a value, or of a pool: hits, misses, what was evicted");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::optional, key, "Key; without one: the pool");
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
  tools::command_parser parser(call, "Erases values: keys by name, or all that begin alike");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::optional, keys, "Keys");
  parser.text("--prefix", "PREFIX", prefix, "Erase the keys that begin so, and say how many there were");
  parser.flag("-f,--force", force, "Keys that are not there are no error");
  parser.flag("--atomic", is_atomic, "All keys or none");
  condition.add(parser, condition_options::of_erase);
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  if (keys.empty() == prefix.empty()) throw tool_failure("give keys, or --prefix PREFIX: peerlane store rm POOL KEY...");
  open_store store(target, pool_name);
  if (!prefix.empty()) {
    if (is_atomic || condition.get()) throw tool_failure("--prefix: neither --atomic nor --if-version go with it");
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
