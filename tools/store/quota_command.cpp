// SPDX-License-Identifier: Apache-2.0
// peerlane store quota: what principals hold, and may hold, by the server's metrics.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "tools/store/files.hpp"
#include "tools/store/reach.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

struct principal_row {
  std::uint64_t keys = 0, bytes = 0, quota_keys = 0, quota_bytes = 0, refused = 0;
  std::uint64_t elsewhere_keys = 0, elsewhere_bytes = 0, cluster_quota_keys = 0, cluster_quota_bytes = 0;
};

constexpr struct {
  const char* family;
  std::uint64_t principal_row::*number;
} kFamilies[] = {{"keys", &principal_row::keys},
                 {"bytes", &principal_row::bytes},
                 {"quota_keys", &principal_row::quota_keys},
                 {"quota_bytes", &principal_row::quota_bytes},
                 {"elsewhere_keys", &principal_row::elsewhere_keys},
                 {"elsewhere_bytes", &principal_row::elsewhere_bytes},
                 {"cluster_quota_keys", &principal_row::cluster_quota_keys},
                 {"cluster_quota_bytes", &principal_row::cluster_quota_bytes},
                 {"refused_total", &principal_row::refused}};

// A label's value up to its closing quote, without the escapes of Prometheus' text.
std::string label_of(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size() && line[i] != '"'; ++i) {
    if (line[i] == '\\' && i + 1 < line.size()) ++i;
    out += line[i];
  }
  return out;
}

std::map<std::string, principal_row> rows_of(const std::string& text) {
  std::map<std::string, principal_row> out;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    for (const auto& [family, number] : kFamilies) {
      const std::string head = format("peerlane_store_principal_%s{principal=\"", family);
      if (!line.starts_with(head)) continue;
      const std::string value(line.substr(line.rfind(' ') + 1));
      out[label_of(line.substr(head.size()))].*number = std::strtoull(value.c_str(), nullptr, 10);
    }
  }
  return out;
}

std::string of_quota(std::uint64_t quota) { return quota == 0 ? std::string("-") : format("%" PRIu64, quota); }

void print_table(const std::map<std::string, principal_row>& rows) {
  std::printf("%-32s %12s %12s %16s %16s %8s\n", "principal", "keys", "quota", "bytes", "quota", "refused");
  for (const auto& [name, one] : rows)
    std::printf("%-32s %12" PRIu64 " %12s %16" PRIu64 " %16s %8" PRIu64 "\n", printable(name).c_str(), one.keys,
                of_quota(one.quota_keys).c_str(), one.bytes, of_quota(one.quota_bytes).c_str(), one.refused);
  // Only clusters have this: a line for the principals concerned.
  for (const auto& [name, one] : rows)
    if ((one.elsewhere_keys | one.cluster_quota_keys | one.cluster_quota_bytes) != 0)
      std::printf("%-32s %12" PRIu64 " %12s %16" PRIu64 " %16s  on all servers\n", printable(name).c_str(),
                  one.keys + one.elsewhere_keys, of_quota(one.cluster_quota_keys).c_str(), one.bytes + one.elsewhere_bytes,
                  of_quota(one.cluster_quota_bytes).c_str());
}

void print_json(const std::map<std::string, principal_row>& rows) {
  nlohmann::ordered_json out{{"principals", nlohmann::ordered_json::array()}};
  for (const auto& [name, one] : rows) {
    nlohmann::ordered_json row{{"principal", name}, {"keys", one.keys}, {"bytes", one.bytes}};
    if (one.quota_keys != 0) row["quota_keys"] = one.quota_keys;
    if (one.quota_bytes != 0) row["quota_bytes"] = one.quota_bytes;
    if (one.elsewhere_keys != 0) row["elsewhere_keys"] = one.elsewhere_keys, row["elsewhere_bytes"] = one.elsewhere_bytes;
    if (one.cluster_quota_keys != 0) row["cluster_quota_keys"] = one.cluster_quota_keys;
    if (one.cluster_quota_bytes != 0) row["cluster_quota_bytes"] = one.cluster_quota_bytes;
    row["refused"] = one.refused;
    out["principals"].push_back(std::move(row));
  }
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

}  // namespace

int run_quota(const tools::invocation& call) {
  reach_options target;
  bool as_json = false;
  tools::command_parser parser(call, "Shows what you store and your quota; an admin sees all principals");
  parser.flag("--json", as_json, "Print one JSON object");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  const auto store = reach(target);
  const auto rows = rows_of(must(store->run(store->make_plain(store_protocol::opcode::stats, 0, {}))).body);
  as_json ? print_json(rows) : print_table(rows);
  return tools::kExitOk;
}

}  // namespace pl::store_tools
