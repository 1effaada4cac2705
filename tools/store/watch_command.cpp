// SPDX-License-Identifier: Apache-2.0
// peerlane store watch: a line for each change of a pool's keys.
#include <atomic>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "base/utf8.hpp"
#include "store/client/watcher.hpp"
#include "tools/store/files.hpp"
#include "tools/store/reach.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

using store_client::watcher;
using store_protocol::event_kind;
using store_protocol::watch_event;
using tools::presence;

std::atomic<bool> g_watch_ends{false};

void print_line(const watch_event& one) {
  if (one.kind == event_kind::lost && one.value_bytes == 0)
    std::printf("lost: the connection was opened again; read the keys again\n");
  else if (one.kind == event_kind::lost)
    std::printf("lost %" PRIu64 ": changes arrived faster than they were read; read the keys again\n", one.value_bytes);
  else if (one.kind == event_kind::put)
    std::printf("put %s version %" PRIu64 " bytes %" PRIu64 "\n", printable(one.key).c_str(), one.version, one.value_bytes);
  else
    std::printf("%s %s version %" PRIu64 "\n", store_protocol::name_of(one.kind), printable(one.key).c_str(), one.version);
}

// Keys are any bytes, of which JSON has UTF-8 only: others are replaced there, and several keys become one text.
std::string hex_of(std::string_view bytes) {
  std::string out;
  for (const char one : bytes) out += format("%02x", static_cast<unsigned>(static_cast<unsigned char>(one)));
  return out;
}

void print_json(const watch_event& one) {
  nlohmann::ordered_json out;
  out["change"] = store_protocol::name_of(one.kind);
  if (one.kind == event_kind::lost) {
    out["lost"] = one.value_bytes;
  } else {
    out["key"] = one.key;
    if (!is_utf8(one.key)) out["key_hex"] = hex_of(one.key);
    out["version"] = one.version;
    if (one.kind == event_kind::put) out["value_bytes"] = one.value_bytes;
  }
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

}  // namespace

int run_watch(const tools::invocation& call) {
  reach_options target;
  std::string pool_name, prefix, key;
  std::int64_t count = 0;
  bool as_json = false;
  tools::command_parser parser(call, "Prints a line for each change in a pool, until interrupted");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("PREFIX", presence::optional, prefix, "Only keys with this prefix [all keys]");
  parser.text("--key", "KEY", key, "Only this key");
  parser.integer("--count", count, 0, INT64_MAX, "Exit after this many changes; 0: never");
  parser.flag("--json", as_json, "Print each change as one JSON object on a line");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  if (!prefix.empty() && !key.empty()) throw tools::tool_failure("give PREFIX or --key, not both");
  const auto store = reach(target);
  const auto watch =
      tools::must(watcher::open(*store, {pool_of(*store, pool_name), key.empty() ? prefix : key, !key.empty()}));
  const auto on_signal = [](int) { g_watch_ends = true; };
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::fprintf(stderr, "watching %s/%s\n", printable(pool_name).c_str(), printable(key.empty() ? prefix : key).c_str());
  constexpr auto kPollPeriod = std::chrono::milliseconds(200);  // for a signal
  for (std::int64_t printed = 0; !g_watch_ends;) {
    const auto events = watch->next(store_client::clock::now() + kPollPeriod);
    // A server that starts again comes back; until then there is nothing to say.
    if (!events && events.code() == ECONNRESET) continue;
    for (const watch_event& one : tools::must(events)) {
      as_json ? print_json(one) : print_line(one);
      if (++printed == count) g_watch_ends = true;
      if (g_watch_ends) break;
    }
    // Nobody reads any more, or there is no room. A line's own flush may have failed before.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) break;
  }
  return tools::kExitOk;
}

}  // namespace pl::store_tools
