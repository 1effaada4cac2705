// SPDX-License-Identifier: Apache-2.0
// The pools of a cluster. Their settings are in etcd; every server creates, changes and deletes its own pools
// accordingly.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "store/cluster/membership.hpp"
#include "store/engine/engine.hpp"

namespace pl::store_cluster {

struct known_pool {
  store::pool_id id = 0;
  std::string name;
  unsigned copies = 0;  // 0: a pool of this server alone
};

class cluster_pools {
 public:
  explicit cluster_pools(store::engine& engine) : engine_(engine) {}
  // Calls `changed` for each pool whose settings changed here because another server changed them.
  void when_changed(std::function<void(const store::pool_info&)> changed);

  // Makes the engine's pools match etcd. Blocking. Reads etcd again before it deletes a pool, because `now` may be old.
  // Returns the last failure; the next call tries again.
  status follow(const cluster_view& now, const membership& members);
  // ENXIO if there is no such pool. Ids are never reused, so the result stays valid.
  result<known_pool> find(store::pool_id id) const;
  // All pools of the cluster.
  std::vector<known_pool> all() const;

  // EEXIST if etcd has one, unless this request made it: its answer was lost, and any server may be asked again. An empty
  // request, of a client of an earlier release, is a new one each time.
  result<store::pool_info> create(membership& members, const std::string& name, const store::pool_options& options,
                                  const store::request_key& request);
  result<store::pool_info> configure(membership& members, store::pool_id id, const store::pool_options& options);
  status drop(membership& members, store::pool_id id);

 private:
  status follow_one(const std::string& name, const store::pool_options& wanted, const membership& members);
  status delete_if_gone(const store::pool_info& mine, const membership& members);

  store::engine& engine_;
  std::mutex following_;
  std::function<void(const store::pool_info&)> changed_;
  mutable std::mutex lock_;
  mutable std::unordered_map<store::pool_id, std::shared_ptr<const known_pool>> known_;
};

// The number in "copies=N" or "pool=ID" among a pool's tags; 0 if there is none.
std::uint64_t number_in_tags(std::string_view tags, std::string_view name);
// The identity of a pool of the cluster (0 if it is none), and the number of servers that keep it.
std::uint64_t identity_of(const store::pool_options& options);
unsigned copies_of(const store::pool_options& options);
std::string to_text(const store::pool_options& options);
std::optional<store::pool_options> read_pool(std::string_view text);

}  // namespace pl::store_cluster
