// SPDX-License-Identifier: Apache-2.0
// A server's place in its cluster: its lease in etcd, and the slot map, which all servers read and any of them may
// change by a transaction on the revision that it has read.
//
//   PREFIX map            the slot map; one transaction at a time changes it, and its epoch counts up
//   PREFIX member/NAME    exists while the server's lease runs
//   PREFIX pool/NAME      settings of a pool that is on all servers
//
// One thread talks to etcd: it renews the lease, looks for changes, and proposes some. holds_lease() depends on this
// machine's clock alone and ends earlier than etcd's lease, because the time counts from before the renewal was
// requested.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "store/cluster/etcd.hpp"
#include "store/cluster/known_cluster.hpp"
#include "store/cluster/plan.hpp"

namespace pl::store_cluster {

struct cluster_options {
  std::vector<std::string> etcd;    // "http://host:port", "https://host:port"
  etcd_tls tls;                     // for https
  std::string cluster = "default";  // distinguishes clusters that share an etcd
  std::string name;                 // of this server, in its cluster
  std::string endpoint;             // "host:port" where clients and other servers reach it
  std::string socket;               // path of its unix socket; empty: none
  std::uint64_t instance = 0;       // as in its handshake
  unsigned lease_s = 5;             // after this long without etcd, this server stops serving
  unsigned repair_after_s = 60;     // a dead server's copies are re-created on others after this time
  std::string data;                 // its data folder, which remembers the cluster; empty: not remembered
  std::string folder;               // identity of its data folder
  std::set<std::uint64_t> pools;    // identities of the cluster's pools in the folder
};

// What etcd held at one moment.
struct cluster_view {
  cluster_map map;
  std::int64_t map_revision = 0;
  names_t alive;
  std::map<std::string, std::int64_t> member_revisions;
  // The cluster's number (cluster_map::id) as members knew it when they joined; 0: unknown. Members of earlier
  // releases, which write maps without one, have none.
  std::map<std::string, std::uint64_t> member_ids;
  std::map<std::string, std::string> pools;  // settings as text
  std::int64_t revision = 0;
};
using view_ptr = std::shared_ptr<const cluster_view>;

// The keys of a cluster in etcd.
std::string cluster_prefix(const std::string& cluster);
result<cluster_view> read_view(const etcd& client, const std::string& cluster);

class membership {
 public:
  struct hooks {
    // Applies the changes that this server wants in the map; may be called several times. Returns true if there are
    // any.
    std::function<bool(const cluster_view& now, cluster_map& next)> propose_changes;
    // Called after each look, changed or not; `now` may be old if etcd does not answer.
    std::function<void(const view_ptr& now)> seen;
    // Whether everything that this server had begun before it lost its lease has ended. It rejoins only then: nothing
    // of that may happen after others have compared their keys with its own.
    std::function<bool()> idle;
    std::function<void(const char* event, const std::string& text)> log;
  };
  // Joins: blocks until etcd has this server, at most for `limit`. EEXIST: another server has this name. EUCLEAN:
  // etcd has lost data of the cluster that the data folder belongs to, or is another one (known_cluster.hpp). Nothing
  // else happens before start().
  static result<std::unique_ptr<membership>> join(const cluster_options& options, hooks callbacks,
                                                  std::chrono::milliseconds limit);
  // The thread calls the hooks from now on.
  status start();
  // Gives the lease back, so that others take over at once. The hooks are no longer called.
  void stop();
  ~membership() { stop(); }
  membership(const membership&) = delete;
  membership& operator=(const membership&) = delete;

  const cluster_options& options() const noexcept { return options_; }
  const etcd& store() const noexcept { return etcd_; }
  std::string prefix() const { return cluster_prefix(options_.cluster); }
  view_ptr view() const;
  // EUCLEAN as above: what etcd has now is no reason to change the folder.
  status believes(const cluster_view& seen) const;
  // Whether this server may serve what the map gives it. Once false, it stays false until the server has rejoined.
  bool holds_lease() const noexcept;
  std::uint64_t lease_left_ns() const noexcept;
  std::uint64_t run() const noexcept { return run_.load(); }
  std::uint64_t rejoins() const noexcept { return rejoins_.load(); }
  // Looks at etcd and proposes changes at once.
  void wake();
  // As wake(), and waits for the result. ETIMEDOUT if etcd does not answer.
  status refresh(std::chrono::milliseconds timeout);

 private:
  membership(const cluster_options& options, etcd client, hooks callbacks);
  void serve();
  status enter_anew();
  void remember(const cluster_view& seen);
  std::uint64_t known_id() const;
  std::uint64_t id_for(const cluster_view& now) const;
  bool enter_with_folder(const cluster_view& view, cluster_map& next, std::uint64_t run) const;
  void publish_self(cluster_server& self) const;
  void report_waiting(const std::string& before, const cluster_map& now) const;
  void renew();
  status poll_once();
  status propose();
  result<bool> write_map(const cluster_view& current, cluster_map next, std::vector<etcd::compare> conditions,
                         std::vector<etcd::change> changes);
  void mark_down(const cluster_view& view, cluster_map& next, bool& changed);

  cluster_options options_;
  etcd etcd_;
  hooks hooks_;
  std::atomic<std::uint64_t> run_{0}, lease_until_ns_{0}, rejoins_{0};
  mutable std::mutex lock_;
  std::condition_variable changed_;
  view_ptr view_;
  std::optional<known_cluster> known_;
  bool stopping_ = false, woken_ = false;
  std::uint64_t checks_begun_ = 0, checks_done_ = 0;  // of the thread; a failed look does not count

  // Used by the thread alone.
  std::int64_t lease_ = 0;
  std::uint64_t renew_at_ns_ = 0, remembered_ns_ = 0;
  bool believes_etcd_ = true;
  std::map<std::string, std::uint64_t> dead_since_ns_;
  std::thread thread_;
};

}  // namespace pl::store_cluster
