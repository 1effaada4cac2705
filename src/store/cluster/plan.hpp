// SPDX-License-Identifier: Apache-2.0
// How a slot map changes: pure functions from what is known to the next map. They do not touch the epoch; whoever writes the
// map to etcd counts it up.
//
// What every map keeps to:
//   complete   each server in placement::copies has every write that was acknowledged for the unit
//   one        only the first of them serves it, and only while its lease runs
//   by itself  a server whose lease runs stops being the first by its own change alone; another may change that only when
//   the
//              lease is out, and then only to a complete copy. The others then join anew: what the dead one had sent to some
//              of them and not to others is made the same everywhere before they count as complete.
// All return whether they changed anything.
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

// What a server brings along.
struct data_folder {
  std::string identity;  // of the folder; never empty
  // It has some pool of the cluster's. Taken for the right one by that, where a map from before identities remembers none.
  bool has_its_pools = false;
};
inline constexpr const char* kFolderUnknown = "unknown";  // the identity in such a map
// For each number of copies, whether there is a pool that has it. Nothing can be missing where there is none.
using copies_in_use = std::array<bool, store_client::kMaxCopies + 1>;
// A server comes (back). Its former self's places are dealt with as a dead one's (forget_dead without it in `alive`) first.
// With another folder than the one that the map remembers it is complete nowhere: its places stay the other folder's
// (slot_map.hpp), until somebody complete serves, that folder is back, or the loss is accepted.
bool enter(cluster_map& map, const std::string& name, const std::string& endpoint, std::uint64_t run,
           const data_folder& folder, const copies_in_use& used);
// Units of which complete copies are in folders that this server had.
unsigned left_behind(const cluster_map& map, const std::string& name);
// By an operator: what only this server's lost folders had, and the folder of a server that is not alive, is given up.
// Such units go to the server with what its folder has, or to another that is alive. How many of them there are.
unsigned accept_loss(cluster_map& map, const std::string& name, const names_t& alive);
// Servers that are not alive leave their places, as far as somebody complete and alive remains.
bool forget_dead(cluster_map& map, const names_t& alive);
// Who shall have the unit, first the one that shall serve it: by rendezvous hashing among the servers that are `in` and not
// `down`, so that one server more or less moves its own share only.
std::vector<std::string> wanted_on(const cluster_map& map, unsigned unit);
// Has missing copies made, and lets those go that are not wanted any more. A unit with fewer than two copies out of two or
// more gets another server at once, whatever is wanted.
bool place(cluster_map& map, const names_t& alive);
// Servers that are leaving and have left are out.
bool retire(cluster_map& map);

// Whom `self`, which serves the unit, shall hand it to; empty: nobody, or not yet.
std::string heir_of(const cluster_map& map, unsigned unit, const std::string& self);
// The copies without which a put is not acknowledged.
inline unsigned least_copies(unsigned unit) { return store_client::copies_of_unit(unit) < 2 ? 1 : 2; }

}  // namespace pl::store_cluster
