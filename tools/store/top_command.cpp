// SPDX-License-Identifier: Apache-2.0
// peerlane store top: what a server does now, by its metrics, as a table that is renewed.
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/text.hpp"
#include "store/server/metrics.hpp"
#include "tools/store/files.hpp"
#include "tools/store/reach.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

using clock = std::chrono::steady_clock;
using store_protocol::opcode;

std::atomic<bool> g_ends{false};

// Prometheus' text: "name{labels}" and its value.
using numbers = std::map<std::string, double, std::less<>>;

numbers parse_metrics(const std::string& text) {
  numbers out;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const auto space = line.rfind(' ');
    if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
    out[line.substr(0, space)] = std::strtod(line.c_str() + space + 1, nullptr);
  }
  return out;
}

double value_of(const numbers& all, const std::string& name) {
  const auto found = all.find(name);
  return found == all.end() ? 0 : found->second;
}

// The sum over those of a family whose labels hold this.
double sum_of(const numbers& all, const std::string& family, const std::string& holds) {
  double out = 0;
  for (auto one = all.lower_bound(family + "{"); one != all.end() && one->first.starts_with(family + "{"); ++one)
    if (one->first.find(holds) != std::string::npos) out += one->second;
  return out;
}

struct sample {
  clock::time_point taken;
  numbers metrics;
  std::vector<store_protocol::pool_entry> pools;
};

sample take_sample(store_client::client& store) {
  sample out;
  out.metrics = parse_metrics(must(store.run(store.make_plain(opcode::stats, 0, {}))).body);
  out.pools = tools::must(store.list_pools());
  out.taken = clock::now();
  return out;
}

struct pool_row {
  std::string name, kind;
  std::uint64_t keys = 0, bytes = 0, quota_bytes = 0;
  double hits_per_s = 0, misses_per_s = 0, evicted_per_s = 0, expired_per_s = 0;
  // Of gets; negative if there were none.
  double hit_share() const {
    const double all = hits_per_s + misses_per_s;
    return all > 0 ? hits_per_s / all : -1;
  }
};

struct report {
  double seconds = 0, connections = 0, watches = 0, arena_bytes = 0, arena_used_bytes = 0, key_bytes = 0,
         disk_used_bytes = 0;
  double in_per_s = 0, out_per_s = 0, failed_per_s = 0;
  std::map<std::string, double> operations_per_s;
  std::vector<pool_row> pools;
};

report compare(const sample& before, const sample& now) {
  report out;
  out.seconds = std::chrono::duration<double>(now.taken - before.taken).count();
  const auto rate = [&](auto&& count) { return std::max(0.0, count(now.metrics) - count(before.metrics)) / out.seconds; };
  const auto gauge = [&](const char* name) { return value_of(now.metrics, std::string("peerlane_store_") + name); };
  out.connections = gauge("connections");
  out.watches = gauge("watches");
  out.arena_bytes = gauge("arena_bytes");
  out.arena_used_bytes = gauge("arena_used_bytes");
  out.key_bytes = gauge("key_bytes");
  out.disk_used_bytes = gauge("disk_used_bytes");
  for (const char* direction : {"in", "out"}) {
    const std::string label = format("direction=\"%s\"", direction);
    (*direction == 'i' ? out.in_per_s : out.out_per_s) =
        rate([&](const numbers& all) { return sum_of(all, "peerlane_store_value_bytes_total", label); });
  }
  out.failed_per_s = rate([](const numbers& all) { return sum_of(all, "peerlane_store_failed_total", ""); });
  for (int op = 1; op <= static_cast<int>(opcode::last); ++op) {
    const char* const name = store_protocol::name_of(static_cast<opcode>(op));
    const double done = rate([&](const numbers& all) {
      return value_of(all, format("peerlane_store_operation_seconds_count{op=\"%s\"}", name));
    });
    if (done > 0) out.operations_per_s[name] = done;
  }
  for (const auto& pool : now.pools) {
    pool_row row;
    row.name = pool.name;
    row.kind = pool.settings.is_cache ? "cache" : store_protocol::name_of(pool.settings.level);
    row.keys = pool.keys, row.bytes = pool.bytes, row.quota_bytes = pool.settings.size_bytes;
    const auto of_pool = [&](const char* name) {
      return rate([&](const numbers& all) {
        return value_of(
            all, format("peerlane_store_pool_%s_total{pool=\"%s\"}", name, store_server::metric_label(pool.name).c_str()));
      });
    };
    row.hits_per_s = of_pool("hits"), row.misses_per_s = of_pool("misses");
    row.evicted_per_s = of_pool("evicted"), row.expired_per_s = of_pool("expired");
    out.pools.push_back(row);
  }
  return out;
}

std::string size_text(double bytes) { return format_size(static_cast<std::uint64_t>(bytes)); }

void print_table(const report& now) {
  std::printf("connections %.0f   watches %.0f   memory %s of %s   keys' memory %s   disk %s\n", now.connections,
              now.watches, size_text(now.arena_used_bytes).c_str(), size_text(now.arena_bytes).c_str(),
              size_text(now.key_bytes).c_str(), size_text(now.disk_used_bytes).c_str());
  std::printf("values in %.1f MB/s, out %.1f MB/s   failed %.0f/s   requests/s:", now.in_per_s * 1e-6, now.out_per_s * 1e-6,
              now.failed_per_s);
  for (const auto& [name, rate] : now.operations_per_s) std::printf(" %s %.0f", name.c_str(), rate);
  std::printf("%s\n\n", now.operations_per_s.empty() ? " none" : "");
  std::printf("%-24s %-10s %12s %12s %10s %10s %7s %10s\n", "pool", "kind", "keys", "bytes", "hits/s", "misses/s", "hit %",
              "left/s");
  for (const pool_row& one : now.pools) {
    const double share = one.hit_share();
    std::printf("%-24s %-10s %12" PRIu64 " %12s %10.0f %10.0f %7s %10.0f\n", printable(one.name).c_str(), one.kind.c_str(),
                one.keys, size_text(static_cast<double>(one.bytes)).c_str(), one.hits_per_s, one.misses_per_s,
                share < 0 ? "-" : format("%.1f", share * 100).c_str(), one.evicted_per_s + one.expired_per_s);
  }
}

void print_json(const report& now) {
  nlohmann::ordered_json out;
  out["seconds"] = now.seconds;
  out["connections"] = now.connections;
  out["watches"] = now.watches;
  out["arena_bytes"] = now.arena_bytes;
  out["arena_used_bytes"] = now.arena_used_bytes;
  out["key_bytes"] = now.key_bytes;
  out["disk_used_bytes"] = now.disk_used_bytes;
  out["value_bytes_in_per_s"] = now.in_per_s;
  out["value_bytes_out_per_s"] = now.out_per_s;
  out["failed_per_s"] = now.failed_per_s;
  out["operations_per_s"] = now.operations_per_s;
  out["pools"] = nlohmann::ordered_json::array();
  for (const pool_row& one : now.pools) {
    nlohmann::ordered_json row{{"pool", one.name},
                               {"kind", one.kind},
                               {"keys", one.keys},
                               {"bytes", one.bytes},
                               {"quota_bytes", one.quota_bytes},
                               {"hits_per_s", one.hits_per_s},
                               {"misses_per_s", one.misses_per_s},
                               {"evicted_per_s", one.evicted_per_s},
                               {"expired_per_s", one.expired_per_s}};
    if (one.hit_share() >= 0) row["hit_share"] = one.hit_share();
    out["pools"].push_back(std::move(row));
  }
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

// Returns false if a signal came.
bool sleep_for(std::int64_t ms) {
  const auto end = clock::now() + std::chrono::milliseconds(ms);
  while (!g_ends && clock::now() < end)
    std::this_thread::sleep_for(std::min<clock::duration>(std::chrono::milliseconds(50), end - clock::now()));
  return !g_ends;
}

}  // namespace

int run_top(const tools::invocation& call) {
  reach_options target;
  std::int64_t interval_ms = 1000;
  bool once = false, as_json = false;
  tools::command_parser parser(call,
                               "Shows live activity of the server: requests, bytes, hits and connections, pool by pool");
  parser.integer("--interval-ms", "MILLISECONDS", interval_ms, 50, 3'600'000,
                 "Interval between updates, over which rates are computed [1000]");
  parser.flag("--once", once, "Print one table and exit");
  parser.flag("--json", as_json, "Print each table as one JSON object");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  const auto store = reach(target);
  const auto on_signal = [](int) { g_ends = true; };
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  const bool is_renewed = !once && !as_json && isatty(STDOUT_FILENO) != 0;
  for (sample before = take_sample(*store); sleep_for(interval_ms);) {
    sample now = take_sample(*store);
    const report difference = compare(before, now);
    if (is_renewed) std::printf("\033[H\033[2J");
    as_json ? print_json(difference) : print_table(difference);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || once) break;
    if (!as_json && !is_renewed) std::printf("\n");
    before = std::move(now);
  }
  return tools::kExitOk;
}

}  // namespace pl::store_tools
