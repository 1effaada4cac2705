// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/plan.hpp"

#include <algorithm>
#include <utility>

#include "base/fnv1a.hpp"

namespace pl::store_cluster {
namespace {

using store_client::copies_of_unit;
using store_client::kPlacements;
using store_client::kUnits;

// Must be the same on every server and in every release, because it decides where values lie.
std::uint64_t score(const std::string& name, unsigned unit) {
  std::uint64_t hash = fnv1a(name);
  hash += 0x9e3779b97f4a7c15 * (unit + 1);
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
  return hash ^ hash >> 31;
}

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool erase_from(std::vector<std::string>& list, const auto& unwanted) { return std::erase_if(list, unwanted) > 0; }

// Servers in order of preference for the unit.
std::vector<std::string> ranked(const cluster_map& map, unsigned unit, const auto& eligible) {
  std::vector<std::pair<std::uint64_t, std::string>> scored;
  for (const auto& [name, one] : map.servers)
    if (eligible(name, one)) scored.emplace_back(score(name, unit % kUnits), name);
  std::sort(scored.rbegin(), scored.rend());
  std::vector<std::string> out;
  for (auto& [points, name] : scored) out.push_back(std::move(name));
  return out;
}

bool place_one(placement& entry, const cluster_map& map, unsigned unit, const names_t& alive) {
  const placement before = entry;
  const auto wanted = wanted_on(map, unit);
  if (wanted.empty()) return false;
  if (entry.copies.empty()) entry.copies.push_back(wanted.front());
  for (const auto& one : wanted)
    if (!entry.has(one) && !entry.fills(one) && alive.contains(one)) entry.joining.push_back(one);
  if (entry.copies.size() + entry.joining.size() < least_copies(unit))
    for (const auto& one : ranked(map, unit, [&](const auto&name, const auto&server) {
           return server.assigned_role == cluster_server::role::active && alive.contains(name);
         }))
      if (!entry.has(one) && entry.joining.empty()) entry.joining.push_back(one);
  erase_from(entry.joining, [&](const std::string& one) {
    const auto known = map.servers.find(one);
    return known == map.servers.end() || known->second.assigned_role != cluster_server::role::active;
  });
  const bool all_there = std::all_of(wanted.begin(), wanted.end(), [&](const auto& one) { return entry.has(one); });
  if (!all_there) return entry != before;
  entry.joining.clear();
  // The primary stays until it has handed over.
  if (contains(wanted, entry.copies.front()))
    erase_from(entry.copies, [&](const auto& one) { return !contains(wanted, one); });
  return entry != before;
}

}  // namespace

bool enter(cluster_map& map, const std::string& name, const std::string& endpoint, std::uint64_t run,
           const data_folder& folder, const copies_in_use& used) {
  auto& mine = map.servers[name];
  mine.endpoint = endpoint;
  mine.run = run;
  mine.down = false;
  const bool same = mine.folder == folder.identity || (mine.folder.empty() && folder.has_its_pools);
  const std::string left = store_client::left_in(name, mine.folder.empty() ? kFolderUnknown : mine.folder);
  const std::string back = store_client::left_in(name, folder.identity);
  mine.folder = folder.identity;
  for (unsigned unit = 0; unit < kPlacements; ++unit) {
    placement& entry = map.units[unit];
    if (!same) erase_from(entry.joining, [&](const auto& one) { return one == name; });
    if (!same && used[copies_of_unit(unit)]) std::replace(entry.copies.begin(), entry.copies.end(), name, left);
    std::replace(entry.copies.begin(), entry.copies.end(), back, name);
  }
  return true;
}

unsigned left_behind(const cluster_map& map, const std::string& name) {
  return static_cast<unsigned>(std::count_if(map.units.begin(), map.units.end(), [&](const placement& entry) {
    return std::any_of(entry.copies.begin(), entry.copies.end(),
                       [&](const auto& one) { return store_client::server_of_left(one) == name; });
  }));
}

unsigned accept_loss(cluster_map& map, const std::string& name, const names_t& alive) {
  unsigned given_up = 0;
  const bool gone = !alive.contains(name);
  for (unsigned unit = 0; unit < kPlacements; ++unit) {
    placement next = map.units[unit];
    if (!erase_from(next.copies,
                    [&](const auto& one) { return store_client::server_of_left(one) == name || (gone && one == name); }))
      continue;
    if (next.copies.empty()) {
      const auto eligible = ranked(map, unit, [&](const auto& one, const auto& server) {
        return alive.contains(one) && server.assigned_role == cluster_server::role::active;
      });
      if (gone && eligible.empty()) continue;  // no server can take it, so the unit keeps waiting
      next.copies = {gone ? eligible.front() : name};
      erase_from(next.joining, [&](const auto& one) { return one == next.copies.front(); });
    }
    map.units[unit] = next;
    ++given_up;
  }
  return given_up;
}

bool forget_dead(cluster_map& map, const names_t& alive) {
  bool changed = false;
  const auto dead = [&](const std::string& one) { return !alive.contains(one); };
  for (placement& entry : map.units) {
    changed = erase_from(entry.joining, dead) || changed;
    const auto successor = std::find_if_not(entry.copies.begin(), entry.copies.end(), dead);
    if (successor == entry.copies.end()) continue;
    if (successor == entry.copies.begin()) {
      changed = erase_from(entry.copies, dead) || changed;
      continue;
    }
    changed = true;
    std::vector<std::string> others(successor + 1, entry.copies.end());
    erase_from(others, dead);
    entry.copies = {*successor};
    entry.joining.insert(entry.joining.begin(), others.begin(), others.end());
  }
  return changed;
}

std::vector<std::string> wanted_on(const cluster_map& map, unsigned unit) {
  auto out = ranked(map, unit, [](const auto&, const cluster_server& one) {
    return one.assigned_role == cluster_server::role::active && !one.down;
  });
  if (out.size() > copies_of_unit(unit)) out.resize(copies_of_unit(unit));
  return out;
}

bool place(cluster_map& map, const names_t& alive) {
  bool changed = false;
  for (unsigned unit = 0; unit < kPlacements; ++unit) changed = place_one(map.units[unit], map, unit, alive) || changed;
  return changed;
}

bool retire(cluster_map& map) {
  bool changed = false;
  for (auto& [name, one] : map.servers) {
    if (one.assigned_role != cluster_server::role::leaving) continue;
    const bool holds = std::any_of(map.units.begin(), map.units.end(), [&server = name](const placement& entry) {
      return entry.has(server) || entry.fills(server);
    });
    if (holds) continue;
    one.assigned_role = cluster_server::role::out;
    changed = true;
  }
  return changed;
}

std::string successor_of(const cluster_map& map, unsigned unit, const std::string& self) {
  const placement& entry = map.units[unit];
  if (entry.copies.empty() || entry.copies.front() != self) return {};
  const auto wanted = wanted_on(map, unit);
  if (wanted.empty() || wanted.front() == self) return {};
  const bool all_there = std::all_of(wanted.begin(), wanted.end(), [&](const auto& one) { return entry.has(one); });
  return all_there ? wanted.front() : std::string();
}

}  // namespace pl::store_cluster
