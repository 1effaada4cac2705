// SPDX-License-Identifier: Apache-2.0
// peerlane store cluster: the state of a cluster in etcd, and the changes that an operator makes there.
#include <algorithm>
#include <cstdio>
#include <sstream>
#include <thread>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "store/cluster/membership.hpp"
#include "tools/common/options.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

using store_client::cluster_map;
using store_client::cluster_server;
using store_client::kPlacements;
using store_cluster::cluster_view;
using store_cluster::etcd;
using tools::presence;
using tools::tool_failure;

constexpr auto kEtcdTimeout = std::chrono::milliseconds(3000);
constexpr int kAttempts = 50;  // others change the map too

struct load {
  unsigned serves = 0, copies = 0, joining = 0;
};

load load_of(const cluster_map& map, const std::string& name) {
  load out;
  for (const auto& entry : map.units) {
    if (entry.has(name)) ++(entry.copies.front() == name ? out.serves : out.copies);
    if (entry.fills(name)) ++out.joining;
  }
  return out;
}

// Units with copies that are not (yet) in place, and units without a primary.
struct unsettled {
  unsigned moving = 0, unserved = 0, short_of_copies = 0;
};

unsettled unsettled_of(const cluster_view& now) {
  unsettled out;
  for (unsigned unit = 0; unit < kPlacements; ++unit) {
    const auto& entry = now.map.units[unit];
    const auto wanted = store_cluster::wanted_on(now.map, unit);
    if (entry.copies.empty() || !now.alive.contains(entry.copies.front())) ++out.unserved;
    else if (entry.copies.size() < store_cluster::least_copies(unit)) ++out.short_of_copies;
    const bool same = entry.joining.empty() && !wanted.empty() && entry.copies.size() == wanted.size() &&
                      entry.copies.front() == wanted.front() &&
                      std::all_of(wanted.begin(), wanted.end(), [&](const auto& one) { return entry.has(one); });
    if (!same) ++out.moving;
  }
  return out;
}

void print_status(const cluster_view& now) {
  std::printf("epoch %llu, %s\n", static_cast<unsigned long long>(now.map.epoch), plural(now.pools.size(), "pool").c_str());
  std::printf("%-16s %-22s %-8s %-6s %7s %7s %7s\n", "server", "address", "role", "alive", "serves", "copies", "joining");
  for (const auto& [name, one] : now.map.servers) {
    const auto mine = load_of(now.map, name);
    std::printf("%-16s %-22s %-8s %-6s %7u %7u %7u\n", name.c_str(), one.endpoint.c_str(),
                store_client::name_of(one.assigned_role),
                now.alive.contains(name) ? "yes"
                : one.down               ? "down"
                                         : "no",
                mine.serves, mine.copies, mine.joining);
  }
  for (const auto& [name, one] : now.map.servers)
    if (const unsigned units = store_cluster::left_behind(now.map, name); units > 0)
      std::printf(
          "%s started with a different data folder (%s): %u units wait for the old folder, or for another server with "
          "complete copies; to give up values that only the old folder contains: peerlane store cluster accept-loss %s\n",
          name.c_str(), one.folder.c_str(), units, name.c_str());
  const auto left = unsettled_of(now);
  std::printf(
      "of %u units (64 slots each, a table for each number of copies): %u are moving, %u are not served, %u accept no puts "
      "because they lack a second copy\n",
      kPlacements, left.moving, left.unserved, left.short_of_copies);
}

// Changes a server's part in the map.
void set_role(const etcd& client, const std::string& cluster, const std::string& name, cluster_server::role role) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    auto now = tools::must(store_cluster::read_view(client, cluster));
    const auto found = now.map.servers.find(name);
    if (found == now.map.servers.end())
      throw tool_failure(format("cluster %s has no server %s", cluster.c_str(), name.c_str()));
    if (found->second.assigned_role == role ||
        (role == cluster_server::role::leaving && found->second.assigned_role == cluster_server::role::out))
      return;
    found->second.assigned_role = role;
    ++now.map.epoch;
    const std::string key = store_cluster::cluster_prefix(cluster) + "map";
    if (tools::must(client.transact({{key, now.map_revision}}, {{key, to_text(now.map), 0, false}}))) return;
  }
  throw tool_failure("the slot map keeps changing: try again");
}

// Gives up values that only the server's lost data folder had.
void give_up(const etcd& client, const std::string& cluster, const std::string& name) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    auto now = tools::must(store_cluster::read_view(client, cluster));
    if (!now.map.servers.contains(name))
      throw tool_failure(format("cluster %s has no server %s", cluster.c_str(), name.c_str()));
    const unsigned units = store_cluster::accept_loss(now.map, name, now.alive);
    if (units == 0)
      throw tool_failure(
          now.alive.contains(name)
              ? format("no unit waits for the data folder of server %s: nothing was changed", name.c_str())
              : format("no other server can take over units of server %s: nothing was changed", name.c_str()));
    ++now.map.epoch;
    const std::string key = store_cluster::cluster_prefix(cluster) + "map",
                      member = key.substr(0, key.size() - 3) + "member/";
    std::vector<etcd::compare> same = {{key, now.map_revision}};
    const auto revision = now.member_revisions.find(name);  // it neither came nor went meanwhile
    same.push_back({member + name, revision == now.member_revisions.end() ? 0 : revision->second});
    if (!tools::must(client.transact(same, {{key, to_text(now.map), 0, false}}))) continue;
    std::printf("%s no longer waiting for server %s's data\n", plural(units, "unit").c_str(), name.c_str());
    return;
  }
  throw tool_failure("the slot map keeps changing: try again");
}

// Waits until all copies are in place. Returns false if they are not in time.
bool wait_until_settled(const etcd& client, const std::string& cluster, std::int64_t seconds) {
  const std::uint64_t deadline = monotonic_ns() + static_cast<std::uint64_t>(seconds) * 1'000'000'000;
  for (;;) {
    const auto now = tools::must(store_cluster::read_view(client, cluster));
    const auto left = unsettled_of(now);
    const bool leaving = std::any_of(now.map.servers.begin(), now.map.servers.end(), [](const auto& one) {
      return one.second.assigned_role == cluster_server::role::leaving;
    });
    if (now.map_revision != 0 && left.moving == 0 && !leaving) return true;
    if (monotonic_ns() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace

int run_cluster(const tools::invocation& call) {
  std::string action = "status", name, addresses = "http://127.0.0.1:2379", cluster = "default";
  std::int64_t wait_s = 0;
  tools::command_parser parser(call, "Shows a cluster of stores, adds and removes servers");
  parser.choice(
      "ACTION", presence::optional, action, {"status", "add", "remove", "rebalance", "accept-loss"},
      "status: show the cluster; add NAME: give slots to a server that was removed (new servers get slots when they start); "
      "remove NAME: move its slots to other servers, after which you can stop it; rebalance: wait until all slots are in "
      "their place; accept-loss NAME: give up the values that only its lost data folder contained");
  parser.positional("NAME", presence::optional, name, "Server");
  store_cluster::etcd_tls tls;
  parser.text("--cluster", "URL,...", addresses, "etcd's addresses, http(s)://HOST:PORT,... [" + addresses + "]");
  parser.text("--cluster-tls-ca", "FILE", tls.authority, "For https: file of the CA that signed etcd's certificate, PEM");
  parser.text("--cluster-tls-cert", "FILE", tls.certificate,
              "For https: file of a certificate, PEM, if etcd requires client certificates");
  parser.text("--cluster-tls-key", "FILE", tls.key, "For https: file of its private key, PEM");
  parser.text("--cluster-name", "NAME", cluster, "Name of the cluster: several clusters can share one etcd [default]");
  parser.integer("--wait-s", "SECONDS", wait_s, 0, 86400, "How long to wait until the slots have moved [0; rebalance: 600]");
  if (const auto code = parser.parse()) return *code;
  std::vector<std::string> urls;
  std::stringstream list(addresses);
  for (std::string one; std::getline(list, one, ',');) urls.push_back(one);
  const auto client = tools::must(etcd::connect(urls, kEtcdTimeout, tls));
  const bool about_one = action == "add" || action == "remove" || action == "accept-loss";
  if (about_one == name.empty())
    throw tool_failure(about_one ? action + " needs the name of a server" : "only add, remove and accept-loss take a NAME");
  if (action == "add") set_role(client, cluster, name, cluster_server::role::active);
  if (action == "remove") set_role(client, cluster, name, cluster_server::role::leaving);
  if (action == "accept-loss") give_up(client, cluster, name);
  if (action == "rebalance" && wait_s == 0) wait_s = 600;
  const bool settled = wait_s == 0 || wait_until_settled(client, cluster, wait_s);
  const auto now = tools::must(store_cluster::read_view(client, cluster));
  if (now.map_revision == 0) throw tool_failure(format("no cluster %s in this etcd", cluster.c_str()));
  print_status(now);
  if (!settled) throw tool_failure("some slots have not moved yet; they continue to move");
  return tools::kExitOk;
}

}  // namespace pl::store_tools
