// SPDX-License-Identifier: Apache-2.0
// The interface through which sessions read and write values and pools. This implementation calls the engine. A server
// of a cluster uses another one (cluster_service.hpp), which first checks that this server serves the key, and
// replicates each write before it reports success.
//
// Threads, blocking and errors are those of the engine's calls of the same names, and additionally EREMOTE (another
// server has the key) and EAGAIN (not now; docs/store-cluster.md).
#pragma once

#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>

#include "store/client/slot_map.hpp"
#include "store/engine/engine.hpp"
#include "store/protocol/wire.hpp"

namespace pl::store_cluster {

class value_service {
 public:
  explicit value_service(store::engine& behind) : engine_(behind) {}
  virtual ~value_service() = default;
  value_service(const value_service&) = delete;
  value_service& operator=(const value_service&) = delete;

  // Whether an operation on the key would be accepted now: asked early, before bytes are received in vain.
  virtual status admits(store::pool_id, std::string_view, bool) const { return {}; }
  // The units of whose keys this server tells all now; nothing: all keys of the pool. EAGAIN: it may not serve now.
  virtual result<std::optional<store_client::unit_list>> listed(store::pool_id) const {
    return std::optional<store_client::unit_list>();
  }
  // Whether values may bypass this service on their way from the socket to the disk in windows.
  virtual bool takes_longer_than_memory() const { return true; }
  virtual void put_async(store::pool_id pool, std::string_view key, std::span<const std::byte> value,
                         const store::put_options& options, store::completion<store::put_result> done) {
    engine_.put_async(pool, key, value, options, std::move(done));
  }
  virtual void commit_async(store::session_id session, store::grant_id id, store::pool_id, std::string_view,
                            const store::commit_options& options, store::completion<store::put_result> done) {
    engine_.commit_async(session, id, options, std::move(done));
  }
  // Whether a run of this pool's values is committed by one call of the engine.
  virtual bool has_runs(store::pool_id) const { return true; }
  // Runs (runs.hpp). `keys` are those of begin_run.
  virtual void commit_run(store::session_id session, store::grant_id first, store::pool_id,
                          std::span<const std::string_view> /*keys*/, std::span<const store::run_commit> items,
                          const store::run_options& options, store::run_completion done) {
    engine_.commit_run(session, first, items, options, std::move(done));
  }
  virtual result<store::pinned_run> pin_run(store::session_id session, store::pool_id pool,
                                            std::span<const std::string_view> keys, const store::get_options& options) {
    return engine_.pin_run(session, pool, keys, options);
  }
  virtual void erase_async(store::pool_id pool, std::string_view key, const store::erase_options& options,
                           store::completion<store::erase_result> done) {
    engine_.erase_async(pool, key, options, std::move(done));
  }
  // All or nothing; only for a single engine.
  virtual void batch_async(store::pool_id pool, std::span<const store::batch_operation> operations,
                           const store::batch_options& options, store::completion<store::batch_result> done) {
    engine_.batch_async(pool, operations, options, std::move(done));
  }
  virtual void lookup_async(store::session_id session, store::pool_id pool, std::string_view key,
                            const store::get_options& options, store::completion<store::pinned_value> done) {
    engine_.lookup_async(session, pool, key, options, std::move(done));
  }
  virtual void stat_async(store::pool_id pool, std::string_view key, store::completion<store::value_info> done) {
    done(engine_.stat(pool, key));
  }

  // ---- Pools; blocking
  // EEXIST if there is one. In a cluster, the pool that this request made before is returned again: its answer was lost.
  virtual result<store::pool_info> create_pool(const std::string& name, const store::pool_options& options,
                                               const store::request_key& /*request*/) {
    return engine_.create_pool(name, options);
  }
  virtual result<store::pool_info> configure_pool(store::pool_id id, const store::pool_options& options) {
    return engine_.configure_pool(id, options);
  }
  virtual status delete_pool(store::pool_id id) { return engine_.delete_pool(id); }
  // Looks up a pool that the engine does not have yet.
  virtual result<store::pool_info> find_pool(const std::string& name) { return engine_.find_pool(name); }

  // The group of a request that changes the key (request_key::group).
  virtual std::uint16_t request_group(store::pool_id, std::string_view) const { return 0; }

  // ---- Between servers
  // `connection`: later connections have greater numbers.
  //
  // Whether the sender may have this done to the key's copy here. EPERM without a cluster. Changes are admitted and
  // passed to the engine while copies_gate() is held shared.
  virtual status admits_copy(const store_protocol::copy_terms&, std::uint64_t /*connection*/, store::pool_id,
                             std::string_view, bool /*write*/) {
    return failure{EPERM, "this server is in no cluster"};
  }
  std::shared_mutex& copies_gate() noexcept { return copies_gate_; }
  // Answers a page of keys (sync_keys, catch_up.hpp). `knows_requests`: after take_requests(). Blocking.
  virtual result<std::string> differing_keys(const store_protocol::copy_terms&, std::uint64_t /*connection*/, store::pool_id,
                                             const store_protocol::tail&, std::string_view, std::string_view,
                                             bool /*knows_requests*/) {
    return failure{EPERM, "this server is in no cluster"};
  }

  // Takes outcomes of requests for the units (unit_set), for a copy that is being filled here (sync_requests,
  // catch_up.hpp). Empty: the catch-up begins, and known outcomes are forgotten. Blocking.
  virtual status take_requests(const store_protocol::copy_terms&, std::uint64_t /*connection*/, const std::string&,
                               std::string_view) {
    return failure{EPERM, "this server is in no cluster"};
  }

  virtual std::uint64_t epoch() const { return 0; }
  virtual result<std::string> map_text() const { return failure{ENOTSUP, "this server is in no cluster"}; }
  // Lines for Prometheus.
  virtual std::string metrics() const { return {}; }

 protected:
  store::engine& engine_;
  std::shared_mutex copies_gate_;
};

}  // namespace pl::store_cluster
