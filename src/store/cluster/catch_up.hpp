// SPDX-License-Identifier: Apache-2.0
// Brings copies that join a unit of this server up to date, from any starting point: empty, or the state of a server
// that was away.
//
//   1. The copy forgets what it knows of requests for the units: it may know of some that this server does not have,
//      which the catch-up undoes. From now on it refuses what this server sent earlier, on older connections: that
//      may stay in the network for seconds, and would overtake what follows.
//   2. The copy takes part in each change (replicator::begin_catch_up), which carries the number of its request.
//   3. The copy receives the outcomes of requests for the units, so that it answers a repeated request as this
//      server would, if it serves the unit by then.
//   4. The keys of the units are compared page by page, by version and checksum, and differences are sent again,
//      each key in the key serializer, so that no change overtakes another: values that the copy lacks, and the
//      absence of those that it should not have.
//
// No request is missed: one that this server had remembered before step 3 is sent in it, and a later one is replicated
// after step 2. Some requests in progress are in both: their change is applied at the copy although the copy already
// knows their outcome (request_outcome::is_remote). Outcomes sent in step 3 need not be final: a change may be undone
// if this server dies before other copies have it. That does no harm:
// - The copy answers requests only once it is complete. Step 4 begins after all outcomes have been sent, and has
//   brought every such change by then: whoever answers "done" has the change.
// - If this server dies before that, only a complete copy takes over. If that one lacks the change, it fills this
//   copy again, from step 1, and later this server too, when it returns.
// A server of an earlier release has no step 3, and does step 1 with the first page of each pool.
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

#include "store/cluster/cluster_pools.hpp"
#include "store/cluster/key_serializer.hpp"
#include "store/cluster/peer_links.hpp"
#include "store/cluster/replicator.hpp"

namespace pl::store_cluster {

using unit_set = std::bitset<store_client::kPlacements>;
std::string to_bytes(const unit_set& units);
// Returns nothing if the bytes are not a unit set.
std::optional<unit_set> units_in(std::string_view bytes);
// The key's name in the key_serializer.
std::string lock_key_of(store::pool_id pool, std::string_view key);

class catch_up {
 public:
  using log_t = std::function<void(const char* event, const std::string& text)>;
  catch_up(store::engine& engine, const cluster_pools& pools, key_serializer& serializer, peer_links& links,
           replicator& copies, std::string self, log_t log);
  // Precondition: stop() was called.
  ~catch_up();

  // Starts the catch-ups that the map requires, and drops those that it no longer requires.
  void act_by(const view_ptr& now, bool serving, std::uint64_t run);
  // A unit whose copy on this server (in this run) is complete.
  struct filled {
    unsigned unit = 0;
    std::string name;
    std::uint64_t run = 0;
    std::uint64_t catch_up_number = 0;  // as returned by replicator::begin_catch_up
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
  void fill(const peer_name& peer, const unit_set& units, store_protocol::copy_terms terms);
  // `knows_requests`: the copy has the outcomes of requests. Otherwise it forgets them with a pool's first page.
  status fill_keys(const peer_name& peer, const unit_set& units, const store_protocol::copy_terms& terms,
                   bool knows_requests);
  status fill_pool(const peer_name& peer, const known_pool& pool, const unit_set& units,
                   const store_protocol::copy_terms& terms, bool knows_requests);
  result<bool> fill_page(const peer_name& peer, const known_pool& pool, const unit_set& units,
                         const store_protocol::copy_terms& terms, bool knows_requests, std::string& after);
  // Sends a part of the requests' outcomes. An empty part makes the copy forget those that it has.
  status tell(const peer_name& peer, const unit_set& units, const store_protocol::copy_terms& terms, std::string part);
  status export_requests(const peer_name& peer, const unit_set& units, const store_protocol::copy_terms& terms);
  status push(const peer_name& peer, const known_pool& pool, const std::vector<store_protocol::key_entry>& keys);

  store::engine& engine_;
  const cluster_pools& pools_;
  key_serializer& serializer_;
  peer_links& links_;
  replicator& copies_;
  const std::string self_;
  log_t log_;
  mutable std::mutex lock_;
  std::map<peer_name, job> jobs_;
  std::set<filled> finished_;
  std::atomic<bool> stopping_{false};
};

// The receiving end: which keys in (fields.after, until] of the units in fields.prefix differ from `theirs`. If the
// last entry has no key, there are more; ask again.
result<std::string> keys_that_differ(store::engine& engine, const known_pool& pool, const unit_set& units,
                                     const std::string& after, std::string_view end, std::string_view theirs);

}  // namespace pl::store_cluster
