// SPDX-License-Identifier: Apache-2.0
// Fills the copies that join units which this server serves, from whatever they have: nothing, or what a server that was
// away still knows.
//
// From its start a copy takes part in each change (replicator::begin_filling). Then the keys of the units are compared page
// by page, by version and checksum, and what differs is sent anew, each key in its turn, so that nothing overtakes anything:
// values that the copy lacks, and the absence of those that it should not have. Last it is told what requests for the units
// did, so that one that comes again is answered by the copy as by this server, if it serves the unit by then. (Those that
// come during the filling bring their numbers along, as to every copy.)
#pragma once

#include <atomic>
#include <bitset>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cluster_pools.hpp"
#include "key_turns.hpp"
#include "peer_links.hpp"
#include "replicator.hpp"

namespace pl::store_cluster {

using unit_set = std::bitset<store_client::kPlacements>;
std::string to_bytes(const unit_set& units);
// Nothing: not such bytes.
std::optional<unit_set> units_in(std::string_view bytes);
// The key's turn (key_turns).
std::string turn_of(store::pool_id pool, std::string_view key);

class catch_up {
 public:
  using log_t = std::function<void(const char* event, const std::string& text)>;
  catch_up(store::engine& engine, const cluster_pools& pools, key_turns& turns, peer_links& links, replicator& copies,
           std::string self, log_t log);
  // stop() comes first.
  ~catch_up();

  // Starts what the map asks for, and lets go of what it does not ask for any more.
  void act_by(const view_ptr& now, bool serving, std::uint64_t run);
  // Units whose copy on this server (of this run) has all.
  struct filled {
    unsigned unit = 0;
    std::string name;
    std::uint64_t run = 0;
    std::uint64_t filling = 0;  // replicator::begin_filling
    auto operator<=>(const filled&) const = default;
  };
  std::vector<filled> finished() const;
  void stop();

  std::atomic<std::uint64_t> compared{0}, pushed{0};

 private:
  struct job {
    std::thread thread;
    bool ended = false;
  };
  void fill(const peer_name& who, const unit_set& units, store_wire::copy_terms terms);
  status fill_pool(const peer_name& who, const known_pool& pool, const unit_set& units, const store_wire::copy_terms& terms);
  result<bool> fill_page(const peer_name& who, const known_pool& pool, const unit_set& units,
                         const store_wire::copy_terms& terms, std::string& after);
  status tell_requests(const peer_name& who, const unit_set& units, const store_wire::copy_terms& terms);
  status push(const peer_name& who, const known_pool& pool, const std::vector<store_wire::key_entry>& keys);

  store::engine& engine_;
  const cluster_pools& pools_;
  key_turns& turns_;
  peer_links& links_;
  replicator& copies_;
  const std::string self_;
  log_t log_;
  mutable std::mutex lock_;
  std::map<peer_name, job> jobs_;
  std::set<filled> finished_;
  std::atomic<bool> stopping_{false};
};

// The other end: which of the keys in (fields.after, until] of the units in fields.prefix are not as `theirs` says. An entry
// without a key at the end: there are more; ask again.
result<std::string> keys_that_differ(store::engine& engine, const known_pool& pool, const unit_set& units,
                                     const std::string& after, std::string_view until, std::string_view theirs);

}  // namespace pl::store_cluster
