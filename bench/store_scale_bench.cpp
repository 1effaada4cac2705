// SPDX-License-Identifier: Apache-2.0
// The store's engine with many small keys.
//
//   store_scale_bench --dir DIR [--json FILE] [--keys N] [--only memory,find,puts,restart]
//
//   memory   N volatile values of 100 bytes: what the process takes for a key beside its value (RssAnon; values lie in the
//            arena, which is shared memory). The same for a cache
//   find     a prefix with 100 000 keys of 400 000, logged, in pages of 1000: all pages, five times
//   puts     logged values of 100 bytes: singly with 500 under way, and in batches of 500 (p99.9 of a batch)
//   restart  N logged keys by a process that ends without closing the store: open() until it returns, and the first value
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "bench/must.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "store/engine/engine.hpp"

namespace pl::store {
namespace {

constexpr std::size_t kValueBytes = 100;

struct arguments {
  std::string folder, json, only = "memory,find,puts,restart";
  std::uint64_t keys = 1'000'000;
};

std::uint64_t private_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("RssAnon:")) return std::strtoull(line.c_str() + 8, nullptr, 10) * 1024;
  die("/proc/self/status has no RssAnon");
}

double seconds_since(std::uint64_t begin_ns) { return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9; }

std::unique_ptr<engine> open_in(const std::string& folder) {
  engine_options options;
  options.directory = folder;
  options.arena_bytes = options.chunk_bytes = std::uint64_t{1} << 30;
  options.extent_file_bytes = std::uint64_t{64} << 20;
  options.cache_of = [](const pool_info& pool) {
    return pool.name == "cache" ? std::optional(cache_terms{}) : std::nullopt;
  };
  return must(engine::open(options));
}

pool_id pool_in(engine& store, const std::string& name, durability level) {
  pool_options options;
  options.level = level;
  return must(store.create_pool(name, options)).id;
}

std::string key_of(std::uint64_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "user%012llu", static_cast<unsigned long long>(number * 0x9e3779b97f4a7c15u >> 24));
  return text;
}

// Up to 500 are under way.
void put_many(engine& store, pool_id pool, std::uint64_t keys, const std::string& prefix = "") {
  const std::vector<std::byte> value(kValueBytes, std::byte{7});
  std::counting_semaphore<500> room(500);
  std::atomic<bool> bad{false};
  for (std::uint64_t i = 0; i < keys; ++i) {
    room.acquire();
    store.put_async(pool, prefix + key_of(i), value, {}, [&](const result<put_result>& done) {
      if (!done) bad = true;
      room.release();
    });
  }
  for (int i = 0; i < 500; ++i) room.acquire();
  if (bad) die("a put failed");
}

void memory_part(const arguments& args, result_file& out) {
  for (const char* name : {"volatile", "cache"}) {
    const auto store = open_in(args.folder + "/" + name);
    const pool_id pool = pool_in(*store, name, durability::volatile_);
    ::malloc_trim(0);  // what an earlier store left behind would be used again, and not seen
    const std::uint64_t before = private_bytes();
    const std::uint64_t begin = monotonic_ns();
    put_many(*store, pool, args.keys);
    const double taken = seconds_since(begin);
    const std::uint64_t keys = must(store->pool(pool)).keys;
    const double each = static_cast<double>(private_bytes() - before) / static_cast<double>(keys);
    std::printf("memory   %-10s %8.0f bytes a key, %llu keys, %.0f puts/s\n", name, each,
                static_cast<unsigned long long>(keys), static_cast<double>(args.keys) / taken);
    out.add_row({{"kind", "memory"},
                 {"pool", name},
                 {"keys", keys},
                 {"key_bytes", each},
                 {"puts_per_s", static_cast<double>(args.keys) / taken}});
  }
}

void find_part(const arguments& args, result_file& out) {
  const auto store = open_in(args.folder + "/find");
  const pool_id pool = pool_in(*store, "pool", durability::logged);
  for (const char* prefix : {"a/", "b/", "c/", "d/"}) put_many(*store, pool, 100'000, prefix);
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) {
    const std::uint64_t begin = monotonic_ns();
    find_options options;
    options.prefix = "b/";
    std::size_t found = 0;
    for (;;) {
      const find_page page = must(store->find(pool, options));
      for (const auto& value : page.values)
        if (value.length_bytes == kValueBytes) ++found;
      if (!page.more) break;
      options.after = page.last;
    }
    if (found < 99'000) die("keys are missing");
    times.push_back(seconds_since(begin));
  }
  std::sort(times.begin(), times.end());
  std::printf("find     100 000 keys: %.3f s, with length and version of each\n", times[times.size() / 2]);
  out.add_row({{"kind", "find"}, {"keys", 100'000}, {"seconds", times[times.size() / 2]}});
}

void puts_part(const arguments& args, result_file& out) {
  const auto store = open_in(args.folder + "/puts");
  const pool_id pool = pool_in(*store, "pool", durability::logged);
  const std::uint64_t begin = monotonic_ns();
  put_many(*store, pool, args.keys);
  const double singly = static_cast<double>(args.keys) / seconds_since(begin);
  const std::vector<std::byte> value(kValueBytes, std::byte{9});
  std::vector<double> times;
  const std::uint64_t again = monotonic_ns();
  for (std::uint64_t i = 0; i < args.keys / 500; ++i) {
    std::vector<std::string> names;
    std::vector<batch_operation> list;
    for (std::uint64_t k = 0; k < 500; ++k) names.push_back(key_of(i * 500 + k));
    for (const std::string& name : names) list.push_back({batch_operation::kind::put, name, value, condition::none, 0, 0});
    const std::uint64_t start = monotonic_ns();
    (void)must(store->batch(pool, list));
    times.push_back(seconds_since(start));
  }
  const double batched = static_cast<double>(args.keys) / seconds_since(again);
  std::sort(times.begin(), times.end());
  const double late = times[times.size() * 999 / 1000] * 1e3;
  std::printf("puts     logged: %.0f/s singly, %.0f/s in batches of 500, p50 %.1f ms, p99.9 %.1f ms\n", singly, batched,
              times[times.size() / 2] * 1e3, late);
  out.add_row({{"kind", "puts"},
               {"keys", args.keys},
               {"singly_per_s", singly},
               {"batched_per_s", batched},
               {"batch_ms_p50", times[times.size() / 2] * 1e3},
               {"batch_ms_p999", late}});
}

void restart_part(const arguments& args, result_file& out) {
  const std::string folder = args.folder + "/restart";
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {  // anew: RocksDB's threads are not in a forked child
    const std::string keys = std::to_string(args.keys);
    ::execl("/proc/self/exe", "store_scale_bench", "--dir", folder.c_str(), "--keys", keys.c_str(), "--only", "write",
            nullptr);
    std::_Exit(1);
  }
  int ended = 0;
  if (::waitpid(child, &ended, 0) != child || ended != 0) die("the writer failed");
  const std::uint64_t begin = monotonic_ns();
  const auto store = open_in(folder);
  const double opened = seconds_since(begin);
  const pool_info pool = must(store->find_pool("pool"));
  std::vector<std::byte> room(kValueBytes);
  (void)must(store->get(pool.id, key_of(args.keys - 1), room));
  const double first = seconds_since(begin);
  if (pool.keys < args.keys * 99 / 100) die("keys are missing after the restart");
  std::printf("restart  %llu logged keys: open() %.2f s, first value %.2f s\n", static_cast<unsigned long long>(pool.keys),
              opened, first);
  out.add_row({{"kind", "restart"}, {"keys", pool.keys}, {"open_seconds", opened}, {"first_value_seconds", first}});
}

int run(int count, char** given) {
  arguments args;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = given[i];
    if (name == "--dir") args.folder = given[i + 1];
    else if (name == "--json") args.json = given[i + 1];
    else if (name == "--keys") args.keys = std::strtoull(given[i + 1], nullptr, 10);
    else if (name == "--only") args.only = given[i + 1];
    else die("unknown option " + name);
  }
  if (args.folder.empty() || args.keys < 1000) die("usage: --dir DIR [--json FILE] [--keys N >= 1000] [--only PARTS]");
  result_file out("store_scale_bench", std::vector<std::string>(given, given + count));
  out.set_machine(describe_host());
  const auto wants = [&](const char* part) { return args.only.find(part) != std::string::npos; };
  if (args.only == "write") {  // the restart part's writer, which ends as a killed process does
    const auto store = open_in(args.folder);
    put_many(*store, pool_in(*store, "pool", durability::logged), args.keys);
    std::_Exit(0);
  }
  std::filesystem::remove_all(args.folder);
  std::filesystem::create_directories(args.folder);
  if (wants("memory")) memory_part(args, out);
  if (wants("find")) find_part(args, out);
  if (wants("puts")) puts_part(args, out);
  if (wants("restart")) restart_part(args, out);
  std::filesystem::remove_all(args.folder);
  if (args.json.empty()) return 0;
  if (const status written = out.write(args.json); !written) die(written.error().message);
  return 0;
}

}  // namespace
}  // namespace pl::store

int main(int count, char** given) { return pl::store::run(count, given); }
