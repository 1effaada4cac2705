// SPDX-License-Identifier: Apache-2.0
// The router's requests that concern all keys of a pool: one page of keys, erasing by prefix, sync.
//
// Each server names the units about which its answer is. The servers of the units that no answer has covered are asked
// again with a newer map, until the deadline. So keys are not missed while their slots move, or when the client's map is
// old.
#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "store/client/interruption.hpp"
#include "store/client/router.hpp"
#include "store/client/router_tries.hpp"

namespace pl::store_client {
namespace {

using store_protocol::opcode;

constexpr auto kWork = std::chrono::seconds(3);  // beyond router_options::try_ms: a server searches for at most 2 s

// What must still be asked, by endpoint. Units that no server has are left out.
std::map<std::string, unit_list> servers_of(const cluster_map& map, unsigned copies, const unit_list& units) {
  std::map<std::string, unit_list> out;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const placement& entry = map.units[(copies - 1) * kUnits + unit];
    if (!units[unit] || entry.copies.empty()) continue;
    if (const auto found = map.servers.find(entry.copies.front()); found != map.servers.end())
      out[found->second.endpoint].set(unit);
  }
  return out;
}

// Servers of earlier releases do not say which units they list: all that the map gives them.
unit_list units_of(const reply& got, const unit_list& asked) {
  if (!got.fields->listed) return asked;
  return unit_list_in(*got.fields->listed).value_or(unit_list());
}

std::string why_not_all(const unit_list& left) {
  std::size_t first = 0;
  while (!left[first]) ++first;
  return format("no server answers for %zu of %u slots now, slot %zu among them", left.count() * kUnitSlots, kSlots,
                first * kUnitSlots);
}

}  // namespace

// The time in which a server answers for one page.
std::chrono::milliseconds router::page_time() const { return std::chrono::milliseconds(options_.try_ms) + kWork; }

reply router::ask_server(const std::string& endpoint, std::uint32_t pool, clock::time_point end, const asker& ask) {
  const auto connection = reach(endpoint, end);
  if (!connection) return failed_reply(connection.code(), connection.error().message);
  const auto number = pool_at(endpoint, *connection, pool, end);
  reply got = number ? ask(**connection, *number, end) : failed_reply(number.code(), number.error().message);
  if (is_about_connection(got.status)) forget(endpoint, *connection);
  return got;
}

// Collects the answers that together cover all units. Returns the failure if there are none such in time.
reply router::for_all_units(std::uint32_t pool, const asker& ask, std::vector<reply>& replies) {
  const auto end = end_of(-1);
  const unsigned copies = copies_of(pool);
  if (copies == 0) return failed_reply(ENXIO, "no such pool is open");
  unit_list left;
  left.set();
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLastPause)) {
    const auto map = current_map();
    reply last;
    for (const auto& [endpoint, units] : servers_of(*map, copies, left)) {
      reply got = ask_server(endpoint, pool, end, ask);
      if (got.status != 0) {
        if (!may_pass(got.status)) return got;
        last = std::move(got);
        continue;
      }
      left &= ~units_of(got, units);
      replies.push_back(std::move(got));
    }
    if (left.none()) return {};
    if (clock::now() + pause >= end) {
      const std::string reason = why_not_all(left);
      return last.status == 0 ? failed_reply(EAGAIN, reason) : failed_reply(last.status, last.text + "; " + reason);
    }
    if (auto failed = pause_for_newer_map(pause, end)) return *std::move(failed);
  }
}

reply router::find(std::uint32_t pool, const key_search& search) {
  std::vector<reply> pages;
  reply out = for_all_units(
      pool,
      [&](client& connection, std::uint32_t number, clock::time_point end) {
        const auto one = connection.make_find(number, search);
        one->deadline = std::min(end, clock::now() + page_time());
        return connection.run(one);
      },
      pages);
  if (out.status != 0) return out;
  std::vector<store_protocol::key_entry> all;
  std::optional<std::string> whole_until;  // every server has listed its keys up to this one
  for (const reply& got : pages) {
    const auto keys = store_protocol::decode_keys(got.body);
    if (!keys) return failed_reply(keys.code(), keys.error().message);
    all.insert(all.end(), keys->begin(), keys->end());
    if (!got.more) continue;
    out.more = true;
    const std::string last = got.fields->after.value_or("");
    if (!whole_until || last < *whole_until) whole_until = last;
  }
  // A key that has moved may come from two servers; the later version is the newer one.
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.key != b.key ? a.key < b.key : a.version > b.version; });
  all.erase(std::unique(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.key == b.key; }), all.end());
  for (const auto& one : all)
    if (!whole_until || one.key <= *whole_until) store_protocol::append(out.body, one);
  store_protocol::tail said;
  said.after = whole_until;
  out.fields = std::move(said);
  return out;
}

reply router::erase_prefix(std::uint32_t pool, std::string_view prefix) {
  std::uint64_t erased = 0;
  std::vector<reply> parts;
  reply out = for_all_units(
      pool,
      [&](client& connection, std::uint32_t number, clock::time_point end) {
        reply got = connection.erase_prefix(number, prefix, milliseconds_until(end), page_time());
        erased += got.result.value_bytes;
        return got;
      },
      parts);
  out.result.value_bytes = erased;
  return out;
}

reply router::sync(std::uint32_t pool) {
  std::vector<reply> parts;
  reply out = for_all_units(
      pool,
      [&](client& connection, std::uint32_t number, clock::time_point end) {
        const auto one = connection.make_plain(opcode::sync, number, {});
        one->deadline = std::min(end, clock::now() + page_time());
        return connection.run(one);
      },
      parts);
  if (out.status == 0 && !parts.empty()) out = std::move(parts.back());
  return out;
}

}  // namespace pl::store_client
