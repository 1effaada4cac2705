// SPDX-License-Identifier: Apache-2.0
// How a slot map changes: pure functions from what is known to the next map. They do not change the epoch; whoever
// writes the map to etcd counts it up.
//
// Every map keeps these rules:
//   complete   Each server in placement::copies has every write that was acknowledged for the unit.
//   one        Only the first of them serves the unit, and only while its lease runs.
//   by itself  A server whose lease runs stops being the first only by its own change. Others may change that only when the
//              lease has expired, and only to a complete copy. The remaining copies then rejoin: changes that the dead
//              server had sent to some of them are made the same everywhere before they count as complete.
// All functions return whether they changed anything.
#pragma once

#include <array>
#include <set>
#include <string>
#include <vector>

#include "store/client/slot_map.hpp"

namespace pl::store_cluster {

using store_client::cluster_map;
using store_client::cluster_server;
using store_client::placement;
using names_t = std::set<std::string>;

// The data folder with which a server joins.
struct data_folder {
  std::string identity;  // of the folder; never empty
  // The folder has a pool of the cluster. If a map from before identities remembers none, such a folder counts as the
  // right one.
  bool has_its_pools = false;
};
inline constexpr const char* kFolderUnknown = "unknown";  // the identity in such a map
// For each number of copies, whether a pool has it. Where there is no pool, nothing can be missing.
using copies_in_use = std::array<bool, store_client::kMaxCopies + 1>;
// A server joins or returns. The places of its earlier run are first handled like a dead server's (forget_dead without
// it in `alive`). With another folder than the one in the map it is complete nowhere: its places stay with the other
// folder (slot_map.hpp) until a complete copy serves, that folder returns, or the loss is accepted.
bool enter(cluster_map& map, const std::string& name, const std::string& endpoint, std::uint64_t run,
           const data_folder& folder, const copies_in_use& used);
// Number of units whose complete copies are in folders that this server had.
unsigned left_behind(const cluster_map& map, const std::string& name);
// Called by an operator: gives up what only this server's lost folders had, and the folder of a server that is not
// alive. Such units go to the server with what its folder has, or to another one that is alive. Returns their number.
unsigned accept_loss(cluster_map& map, const std::string& name, const names_t& alive);
// Servers that are not alive lose their places, as long as a complete copy that is alive remains.
bool forget_dead(cluster_map& map, const names_t& alive);
// The servers that should have the unit, beginning with the one that should serve it: by rendezvous hashing among the
// servers that are `in` and not `down`, so that adding or removing a server moves only its own share.
std::vector<std::string> wanted_on(const cluster_map& map, unsigned unit);
// Requests missing copies, and drops copies that are no longer wanted. A unit that should have two or more copies and
// has fewer than two gets another server at once, whatever is wanted.
bool place(cluster_map& map, const names_t& alive);
// Servers that were leaving and have no slots left are out.
bool retire(cluster_map& map);

// The server to which `self`, which serves the unit, should hand it over; empty: none, or not yet.
std::string successor_of(const cluster_map& map, unsigned unit, const std::string& self);
// The number of copies without which a put is not acknowledged.
inline unsigned least_copies(unsigned unit) { return store_client::copies_of_unit(unit) < 2 ? 1 : 2; }

}  // namespace pl::store_cluster
