// SPDX-License-Identifier: Apache-2.0
// Replicates this server's puts and erases to the unit's other copies, and reports when all of them have the change.
//
// A change waits for every complete copy that the map names at the time of the answer, and for those that are being
// filled from here. This server, which serves the unit, removes a copy from the map that does not take the change in
// time. If that fails, this server no longer serves the unit, and the change ends with EREMOTE: it may or may not have
// happened. The replicator does not abandon a change that it can still finish.
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

// A key's new state for its copies: its current value, or its absence.
struct change {
  store::pool_id pool = 0;
  std::string pool_name, key;
  unsigned unit = 0;
  bool erased = false;
  store::version_t version = 0;  // erased: version of the erased value
  store::version_t replaces = 0;
  store::durability level = store::durability::pool_default;
  store::request_key request{};
};

class replicator {
 public:
  replicator(store::engine& engine, peer_links& links, const std::string& self, std::uint64_t give_up_ns);
  ~replicator();

  // Sets the map to act by; null while this server may not serve. Re-examines changes in progress.
  void act_by(const view_ptr& now, bool serving, std::uint64_t run);
  // Calls `done` with the number of servers that have the change, or the failure. Precondition: the caller holds the
  // key.
  void spread(const change& change, std::function<void(const result<unsigned>&)> done);
  // Sends the change to `peer` only, once. Precondition: the caller holds the key.
  void send(const change& change, const peer_name& peer, std::function<void(const status&)> done);

  // From now on a copy in catch-up takes part in changes, until it fails or is dropped. Returns the number of this
  // catch-up; a later one of the same copy has another number and supersedes it.
  std::uint64_t begin_catch_up(unsigned unit, const std::string& name);
  void end_catch_up(unsigned unit, const std::string& name, std::uint64_t catch_up_number);
  bool fills(unsigned unit, const std::string& name, std::uint64_t catch_up_number) const;
  // This server is about to write, on top of the map's revision, that the copy is complete. Returns false if the copy
  // has failed meanwhile and is not complete. Whether the map was written may be unknown for a while: no change ends
  // without the copy until another revision has been seen.
  bool promise(unsigned unit, const std::string& name, std::uint64_t catch_up_number, std::int64_t revision);
  // Copies that a put to the unit would reach now, including this server's.
  unsigned reachable_copies(unsigned unit) const;

  // Servers that do not accept changes.
  std::set<std::string> suspects() const;

  std::atomic<std::uint64_t> sent{0}, failed{0};

 private:
  struct spreading;
  using spreading_ptr = std::shared_ptr<spreading>;
  std::vector<std::string> needed(unsigned unit) const;
  void step(const spreading_ptr& one);
  void on_copy_answer(const spreading_ptr& one, const peer_name& peer, const status& outcome);
  void send_value(const change& change, const peer_name& peer, store_protocol::copy_terms terms,
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
  std::set<spreading_ptr> in_flight_;
  std::map<std::pair<unsigned, std::string>, std::uint64_t> catching_up_;
  std::uint64_t catch_ups_ = 0;
  // Of those, with the revision that the map replaces
  std::map<std::pair<unsigned, std::string>, std::int64_t> promised_;
  std::map<std::string, std::uint64_t> failing_since_ns_;
};

}  // namespace pl::store_cluster
