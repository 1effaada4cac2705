// SPDX-License-Identifier: Apache-2.0
// The value service of a server in a cluster. While its lease runs, it accepts operations on keys whose slots it
// serves, and replicates puts and erases to the other copies before it answers.
//
//   put: check ownership -> serialize by key -> engine -> all copies -> answer
//   get: check ownership -> engine -> wait for pending puts of the key -> check ownership again -> answer
//
// So a get never returns a value that could be lost with this server, nor one that is older than another server's
// takeover. Pools that the cluster does not know (from a time as a single server) are served by this server only.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "store/cluster/catch_up.hpp"
#include "store/cluster/cluster_pools.hpp"
#include "store/cluster/held_reports.hpp"
#include "store/cluster/key_serializer.hpp"
#include "store/cluster/membership.hpp"
#include "store/cluster/peer_links.hpp"
#include "store/cluster/replicator.hpp"
#include "store/cluster/value_service.hpp"

namespace pl::store_cluster {

class cluster_service final : public value_service {
 public:
  using log_t = std::function<void(const char* event, const std::string& text)>;
  // Joins the cluster. `security` proves this server's identity to others, if they require TLS.
  static result<std::unique_ptr<cluster_service>> open(store::engine& behind, const cluster_options& options,
                                                       const store_client::address& security, log_t log);
  // Gives the lease back. Precondition: no calls are made any more, and the engine is still open.
  ~cluster_service() override;
  // As cluster_pools::when_changed.
  void when_pool_changed(std::function<void(const store::pool_info&)> changed) { pools_.when_changed(std::move(changed)); }

  status admits(store::pool_id pool, std::string_view key, bool write) const override;
  bool takes_longer_than_memory() const override { return false; }
  void batch_async(store::pool_id pool, std::span<const store::batch_operation> operations,
                   const store::batch_options& options, store::completion<store::batch_result> done) override;
  result<std::optional<store_client::unit_list>> listed(store::pool_id pool) const override;
  void put_async(store::pool_id pool, std::string_view key, std::span<const std::byte> value,
                 const store::put_options& options, store::completion<store::put_result> done) override;
  void commit_async(store::session_id session, store::grant_id id, store::pool_id pool, std::string_view key,
                    const store::commit_options& options, store::completion<store::put_result> done) override;
  void erase_async(store::pool_id pool, std::string_view key, const store::erase_options& options,
                   store::completion<store::erase_result> done) override;
  bool has_runs(store::pool_id pool) const override;
  void commit_run(store::session_id session, store::grant_id first, store::pool_id pool,
                  std::span<const std::string_view> keys, std::span<const store::run_commit> items,
                  const store::run_options& options, store::run_completion done) override;
  result<store::pinned_run> pin_run(store::session_id session, store::pool_id pool, std::span<const std::string_view> keys,
                                    const store::get_options& options) override;
  void lookup_async(store::session_id session, store::pool_id pool, std::string_view key, const store::get_options& options,
                    store::completion<store::pinned_value> done) override;
  void stat_async(store::pool_id pool, std::string_view key, store::completion<store::value_info> done) override;

  result<store::pool_info> create_pool(const std::string& name, const store::pool_options& options,
                                       const store::request_key& request) override;
  result<store::pool_info> configure_pool(store::pool_id id, const store::pool_options& options) override;
  status delete_pool(store::pool_id id) override;
  result<store::pool_info> find_pool(const std::string& name) override;

  std::uint16_t request_group(store::pool_id pool, std::string_view key) const override;
  status admits_copy(const store_protocol::copy_terms& terms, std::uint64_t connection, store::pool_id pool,
                     std::string_view key, bool write) override;
  result<std::string> differing_keys(const store_protocol::copy_terms& terms, std::uint64_t connection, store::pool_id pool,
                                     const store_protocol::tail& fields, std::string_view end, std::string_view theirs,
                                     bool knows_requests) override;

  status take_requests(const store_protocol::copy_terms& terms, std::uint64_t connection, const std::string& units,
                       std::string_view outcomes) override;

  std::uint64_t epoch() const override;
  result<std::string> map_text() const override;
  std::string metrics() const override;

 private:
  cluster_service(store::engine& behind, const cluster_options& options, const store_client::address& security, log_t log);

  // The map and this server's role in it, as one immutable snapshot.
  struct service_state {
    view_ptr view;
    std::uint64_t run = 0;                                       // of this server, when it was read
    std::array<bool, store_client::kPlacements> mine{};          // the map says that this server serves it
    std::array<bool, store_client::kPlacements> handing_over{};  // as soon as no change is in progress
  };
  using service_state_ptr = std::shared_ptr<const service_state>;
  struct healing;
  // A put or erase that has been admitted.
  struct entered {
    known_pool pool;
    std::string key, turn;
    unsigned unit = 0;
    bool has_turn = false;
  };

  service_state_ptr now() const;
  status may_serve(const service_state& snapshot) const;
  status may(const service_state& snapshot, unsigned unit, std::string_view key) const;
  // Counts a change as in progress, and finds the key's pool and unit.
  result<entered> enter(const known_pool& pool, std::string_view key);
  void leave(const entered& one);
  // Whether an admitted change may still be applied, possibly long after enter(). Precondition: the caller holds the
  // key.
  status still_may(const entered& one) const;
  // Continues a change after the engine: replicates it, answers, and leaves the key.
  template <class Result>
  store::completion<Result> copies_then(const entered& one, bool erased, store::durability level,
                                        const store::request_key& request, store::completion<Result> done);
  // Ends a read: after pending changes of its key, and only if this server still serves the key.
  template <class Result>
  void end_read(const known_pool& pool, std::string_view key, result<Result> found, std::function<void(const Result&)> drop,
                store::completion<Result> done);
  // The value is damaged here: fetches it from another copy, replaces it, and calls `callback` with the outcome.
  void heal(const known_pool& pool, const std::string& key, std::function<void(const status&)> callback);
  void heal_from(const std::shared_ptr<healing>& repair);

  // Forgets what this server remembers of requests for units in which it is being filled: their effect here may have
  // been lost since.
  status forget_requests(const cluster_map& map, const unit_set& units);
  result<view_ptr> view_for(const store_protocol::copy_terms& terms);
  // The first message of a catch-up by the sender in `terms`. Blocking.
  status begin_being_filled(const store_protocol::copy_terms& terms, std::uint64_t connection, const cluster_map& map,
                            const unit_set& units);
  bool is_late(unsigned unit, std::uint64_t sender, std::uint64_t connection) const;
  // Whether nothing of an earlier run is in progress any more.
  bool is_idle() const;
  void follow_pools(const cluster_view& view);
  void seen(const view_ptr& view);
  bool propose_changes(const cluster_view& view, cluster_map& next);

  log_t log_;
  const cluster_options options_;
  cluster_pools pools_;
  key_serializer serializer_;
  peer_links links_;
  replicator copies_;
  std::unique_ptr<membership> members_;
  std::unique_ptr<held_reports> held_;
  catch_up filler_;
  std::atomic<bool> pools_touched_{false};  // by a request, since the last follow_pools()
  // Of the membership's thread.
  bool pools_differ_ = false;  // from etcd's: something failed
  std::string pools_failure_;
  std::uint64_t pools_followed_ns_ = 0;
  mutable std::mutex lock_;
  service_state_ptr service_state_;
  struct received_catch_up {
    std::uint64_t sender = 0;  // run of the sender
    std::uint64_t connection = 0;
  };
  std::array<received_catch_up, store_client::kPlacements>
      catch_ups_{};  // of this server, the last one for each unit; guarded by lock_
  mutable std::array<std::atomic<std::uint32_t>, store_client::kPlacements> changes_{};  // changes in progress
  mutable std::atomic<std::uint64_t> moved_{0}, not_now_{0}, healed_{0}, refused_copies_{0};
};

}  // namespace pl::store_cluster
