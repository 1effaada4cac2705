// SPDX-License-Identifier: Apache-2.0
// Brings what this server has put or erased to the unit's other copies, and says when all of them have it.
//
// A change waits for every complete copy that the map names at the time of the answer, and for those that are being filled
// from here. A copy that does not take it in time is voted out of the map (by this server, which serves the unit); if that
// cannot be done, this server is no longer the one that serves, and the change ends with EREMOTE: it may or may not be.
// Nothing here gives up on a change that it could still finish.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "store/cluster/membership.hpp"
#include "store/cluster/peer_links.hpp"
#include "store/engine/engine.hpp"

namespace pl::store_cluster {

// A key's state that copies shall take: the value that it has now, or that it is gone.
struct change {
  store::pool_id pool = 0;
  std::string pool_name, key;
  unsigned unit = 0;
  bool erased = false;
  store::version_t version = 0;  // erased: of what was erased
  store::version_t replaces = 0;
  store::durability level = store::durability::pool_default;
  store::request_key request{};
};

class replicator {
 public:
  replicator(store::engine& engine, peer_links& links, const std::string& self, std::uint64_t give_up_ns);
  ~replicator();

  // The map to act by; null while this server may not serve. Looks again at what is under way.
  void act_by(const view_ptr& now, bool serving, std::uint64_t run);
  // `done` with the number of servers that have it, or why it is not known. Precondition: the key's turn.
  void spread(const change& what, std::function<void(const result<unsigned>&)> done);
  // Only to this server, once. Precondition: the key's turn.
  void send(const change& what, const peer_name& to, std::function<void(const status&)> done);

  // A copy that is being filled from here takes part from now on, until it fails or is dropped.
  // The number is this filling's: a later one of the same copy has another, and the earlier one comes to nothing.
  std::uint64_t begin_filling(unsigned unit, const std::string& name);
  void end_filling(unsigned unit, const std::string& name, std::uint64_t filling);
  bool fills(unsigned unit, const std::string& name, std::uint64_t filling) const;
  // This server is about to write, over the map's revision, that the copy is complete. False: it has failed meanwhile, and
  // is not. Whether the map was written may not be known for a while: no change ends without the copy until another
  // revision has been seen.
  bool promise(unsigned unit, const std::string& name, std::uint64_t filling, std::int64_t revision);
  // Copies that a put to the unit would reach now, this server's included.
  unsigned reachable_copies(unsigned unit) const;

  // Servers that do not take what they are sent.
  std::set<std::string> suspects() const;

  std::atomic<std::uint64_t> sent{0}, failed{0};

 private:
  struct spreading;
  using spreading_ptr = std::shared_ptr<spreading>;
  std::vector<std::string> needed(unsigned unit) const;
  void step(const spreading_ptr& one);
  void told(const spreading_ptr& one, const peer_name& who, const status& outcome);
  void send_value(const change& what, const peer_name& to, store_wire::copy_terms terms,
                  std::function<void(const status&)> done);

  store::engine& engine_;
  peer_links& links_;
  const std::string self_;
  const std::uint64_t give_up_ns_;
  store::session_id session_;

  mutable std::mutex lock_;
  view_ptr view_;
  bool serving_ = false;
  std::uint64_t run_ = 0;
  std::set<spreading_ptr> under_way_;
  std::map<std::pair<unsigned, std::string>, std::uint64_t> filling_;
  std::uint64_t fillings_ = 0;
  std::map<std::pair<unsigned, std::string>, std::int64_t> promised_;  // of those, and over which revision
  std::map<std::string, std::uint64_t> failing_since_ns_;
};

}  // namespace pl::store_cluster
