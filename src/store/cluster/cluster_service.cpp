// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/cluster_service.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::store_cluster {
namespace {

using store_client::copies_of_unit;
using store_client::kPlacements;
using store_client::unit_of;

constexpr store::version_t kTakeOverVersions = store::version_t{1}
                                               << 32;  // more puts than fit into the time of a lost lease
constexpr auto kRefreshTimeout = std::chrono::seconds(5);
constexpr std::uint64_t kFollowAgainNs = 1'000'000'000;
constexpr auto kJoinTimeout = std::chrono::seconds(30);  // others may change the map meanwhile

// Whether this run of the server serves the unit.
bool is_served_by(const cluster_map& map, unsigned unit, std::uint64_t run) {
  const auto& copies = map.units[unit].copies;
  const auto first = copies.empty() ? map.servers.end() : map.servers.find(copies.front());
  return first != map.servers.end() && first->second.run == run;
}

bool is_condition(int code) { return code == ENOENT || code == EEXIST || code == ESTALE; }

}  // namespace

cluster_service::cluster_service(store::engine& behind, const cluster_options& options,
                                 const store_client::address& security, log_t log)
    : value_service(behind),
      log_(log),
      options_(options),
      pools_(behind),
      links_(security, std::clamp(options.lease_s * 1000u, 1000u, 10'000u)),
      copies_(behind, links_, options.name, std::uint64_t{options.lease_s} * 1'000'000'000),
      filler_(behind, pools_, serializer_, links_, copies_, options.name, log),
      service_state_(std::make_shared<service_state>()) {}

result<std::unique_ptr<cluster_service>> cluster_service::open(store::engine& behind, const cluster_options& options,
                                                               const store_client::address& security, log_t log) {
  std::unique_ptr<cluster_service> made(new cluster_service(behind, options, security, std::move(log)));
  auto* me = made.get();
  membership::hooks hooks;
  hooks.propose_changes = [me](const cluster_view& view, cluster_map& next) { return me->propose_changes(view, next); };
  hooks.seen = [me](const view_ptr& view) { me->seen(view); };
  hooks.idle = [me] { return me->is_idle(); };
  hooks.log = me->log_;
  cluster_options self = options;
  self.folder = behind.identity();
  for (const auto& pool : behind.list_pools())
    if (const auto identity = identity_of(pool.options); identity != 0) self.pools.insert(identity);
  // The lease of this server's earlier run may have to expire first.
  const auto timeout = std::max(std::chrono::seconds(options.lease_s) * 3, kJoinTimeout);
  auto joined = membership::join(self, std::move(hooks), timeout);
  if (!joined) return joined.error();
  me->members_ = *std::move(joined);
  me->follow_pools(*me->members_->view());
  // Before the first put, so that what the others hold counts from the beginning.
  me->held_ = std::make_unique<held_reports>(behind, *me->members_, me->log_);
  if (const status said = me->held_->exchange(); !said) return said.error();
  if (const status started = me->members_->start(); !started) return started.error();
  if (const status started = me->held_->start(); !started) return started.error();
  return made;
}

cluster_service::~cluster_service() {
  if (held_) held_->stop();
  if (members_) members_->stop();
  copies_.act_by(now()->view ? now()->view : std::make_shared<cluster_view>(), false, 0);  // ends pending operations
  filler_.stop();
  links_.stop();
}

// ---- Which server? ------------------------------------------------------------------------------------------------------

cluster_service::service_state_ptr cluster_service::now() const {
  const std::lock_guard hold(lock_);
  return service_state_;
}

// A server that has rejoined reads the map first, because the slots that it served may be another server's now.
status cluster_service::may_serve(const service_state& snapshot) const {
  if (members_->holds_lease() && snapshot.run == members_->run()) return {};
  ++not_now_;
  return failure{EAGAIN, format("server %s has no lease in its cluster: it may not serve", options_.name.c_str())};
}

status cluster_service::may(const service_state& snapshot, unsigned unit, std::string_view key) const {
  if (status fine = may_serve(snapshot); !fine) return fine;
  if (!snapshot.mine[unit]) {
    const std::string waits = snapshot.view ? snapshot.view->map.why_waiting(copies_of_unit(unit), key) : std::string();
    if (!waits.empty() && !snapshot.view->alive.contains(snapshot.view->map.units[unit].copies.front())) {
      ++not_now_;
      return failure{EAGAIN, waits};
    }
    ++moved_;
    const auto& copies = snapshot.view ? snapshot.view->map.units[unit].copies : std::vector<std::string>();
    return failure{EREMOTE, format("slot %u is served by %s, not by %s (epoch %llu)", store_client::slot_of(key),
                                   copies.empty() ? "nobody" : copies.front().c_str(), options_.name.c_str(),
                                   static_cast<unsigned long long>(snapshot.view ? snapshot.view->map.epoch : 0))};
  }
  if (snapshot.handing_over[unit]) {
    ++not_now_;
    return failure{EAGAIN, format("slot %u is being handed to another server", store_client::slot_of(key))};
  }
  return {};
}

status cluster_service::admits(store::pool_id pool, std::string_view key, bool write) const {
  const auto known = pools_.find(pool);
  if (!known || known->copies == 0) return {};  // the engine reports it
  const unsigned unit = unit_of(known->copies, key);
  if (status fine = may(*now(), unit, key); !fine) return fine;
  const unsigned copies = write ? copies_.reachable_copies(unit) : least_copies(unit);
  if (copies >= least_copies(unit)) return {};
  ++not_now_;
  return failure{EAGAIN, format("too few servers are available for %u copies: puts wait for another one", known->copies)};
}

result<std::optional<store_client::unit_list>> cluster_service::listed(store::pool_id pool) const {
  const auto known = pools_.find(pool);
  if (!known || known->copies == 0) return std::optional<store_client::unit_list>();
  const auto snapshot = now();
  if (const status fine = may_serve(*snapshot); !fine) return fine.error();
  store_client::unit_list out;
  const std::size_t first = (known->copies - 1) * store_client::kUnits;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = snapshot->mine[first + i];
  return std::optional(out);
}

// ---- Changes -------------------------------------------------------------------------------------------------------------

result<cluster_service::entered> cluster_service::enter(const known_pool& pool, std::string_view key) {
  entered out{pool, std::string(key), lock_key_of(pool.id, key), unit_of(pool.copies, key), false};
  ++changes_[out.unit];  // before the check: a handover that begins after it sees this change
  if (status fine = admits(pool.id, key, true); !fine) {
    --changes_[out.unit];
    return fine.error();
  }
  return out;
}

status cluster_service::still_may(const entered& one) const { return admits(one.pool.id, one.key, true); }

void cluster_service::leave(const entered& one) {
  --changes_[one.unit];
  serializer_.leave(one.turn);
}

template <class Result>
store::completion<Result> cluster_service::copies_then(const entered& one, bool erased, store::durability level,
                                                       const store::request_key& request, store::completion<Result> done) {
  return [this, one, erased, level, request, done = std::move(done)](result<Result> local) {
    if (!local) {
      leave(one);
      // A failed condition is a statement about the key, so only the server that serves the key may answer it.
      const status fine = is_condition(local.code()) ? may(*now(), one.unit, one.key) : status{};
      return done(fine ? std::move(local) : result<Result>(fine.error()));
    }
    if (erased && local->version == 0) {  // nothing was erased
      leave(one);
      return done(std::move(local));
    }
    change change{one.pool.id, one.pool.name, one.key, one.unit, erased, local->version, 0, level, request};
    copies_.spread(change, [this, one, local = *std::move(local), done](const result<unsigned>& copies) mutable {
      leave(one);
      if (!copies) return done(copies.error());
      local.copies = *copies;
      done(std::move(local));
    });
  };
}

void cluster_service::put_async(store::pool_id pool, std::string_view key, std::span<const std::byte> value,
                                const store::put_options& options, store::completion<store::put_result> done) {
  const auto known = pools_.find(pool);
  if (!known || known->copies == 0) return engine_.put_async(pool, key, value, options, std::move(done));
  const auto one = enter(*known, key);
  if (!one) return done(one.error());
  const auto go = [this, one = *one, options, done](std::span<const std::byte> bytes) {
    auto callback = copies_then<store::put_result>(one, false, options.level, options.request, done);
    if (const status fine = still_may(one); !fine) return callback(fine.error());
    engine_.put_async(one.pool.id, one.key, bytes, options, std::move(callback));
  };
  if (serializer_.try_take(one->turn)) return go(value);
  serializer_.take(one->turn, [go, bytes = std::vector<std::byte>(value.begin(), value.end())] { go(bytes); });
}

void cluster_service::commit_async(store::session_id session, store::grant_id id, store::pool_id pool, std::string_view key,
                                   const store::commit_options& options, store::completion<store::put_result> done) {
  const auto known = pools_.find(pool);
  if (!known || known->copies == 0) return engine_.commit_async(session, id, options, std::move(done));
  const auto one = enter(*known, key);
  if (!one) {
    (void)engine_.abort(session, id);
    return done(one.error());
  }
  serializer_.take(one->turn, [this, one = *one, session, id, options, done = std::move(done)] {
    auto callback = copies_then<store::put_result>(one, false, options.put.level, options.put.request, done);
    if (const status fine = still_may(one); !fine) {
      (void)engine_.abort(session, id);
      return callback(fine.error());
    }
    engine_.commit_async(session, id, options, std::move(callback));
  });
}

bool cluster_service::has_runs(store::pool_id pool) const {
  const auto known = pools_.find(pool);
  return !known || known->copies == 0;
}

// Each value is serialized and replicated on its own.
void cluster_service::commit_run(store::session_id session, store::grant_id first, store::pool_id pool,
                                 std::span<const std::string_view> keys, std::span<const store::run_commit> items,
                                 const store::run_options& options, store::run_completion done) {
  const auto known = pools_.find(pool);
  if (!known || known->copies == 0) return engine_.commit_run(session, first, items, options, std::move(done));
  std::vector<store::committed_value> outcomes(items.size());
  const auto wanted = static_cast<std::size_t>(
      std::count_if(items.begin(), items.end(), [](const store::run_commit& one) { return one.is_wanted; }));
  if (wanted == 0) {
    (void)engine_.abort_run(session, first);
    return done(std::move(outcomes));
  }
  const auto answer = std::make_shared<store::run_answer>(std::move(outcomes), wanted, std::move(done));
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_wanted) (void)engine_.abort(session, first + i);
    else
      commit_async(session, first + i, pool, keys[i], options_of(options, items[i], i),
                   [answer, i](result<store::put_result> put) { answer->note(i, std::move(put)); });
  }
}

void cluster_service::erase_async(store::pool_id pool, std::string_view key, const store::erase_options& options,
                                  store::completion<store::erase_result> done) {
  const auto known = pools_.find(pool);
  if (!known || known->copies == 0) return engine_.erase_async(pool, key, options, std::move(done));
  const auto one = enter(*known, key);
  if (!one) return done(one.error());
  serializer_.take(one->turn, [this, one = *one, options, done = std::move(done)] {
    auto callback = copies_then<store::erase_result>(one, true, options.level, options.request, done);
    if (const status fine = still_may(one); !fine) return callback(fine.error());
    engine_.erase_async(one.pool.id, one.key, options, std::move(callback));
  });
}

void cluster_service::batch_async(store::pool_id pool, std::span<const store::batch_operation> operations,
                                  const store::batch_options& options, store::completion<store::batch_result> done) {
  const auto known = pools_.find(pool);
  if (!known || known->copies == 0) return engine_.batch_async(pool, operations, options, std::move(done));
  done(failure{ENOTSUP,
               "the keys of a cluster are on several servers, which have no atomic batches: put the keys one "
               "by one, or into a pool of one server"});
}

// ---- Reads ---------------------------------------------------------------------------------------------------------------

template <class Result>
void cluster_service::end_read(const known_pool& pool, std::string_view key, result<Result> found,
                               std::function<void(const Result&)> drop, store::completion<Result> done) {
  // A change may end without being known to every copy, because this server no longer serves the key or because it
  // alone has the change. In both cases a value may be returned if this server still serves the key.
  serializer_.behind(lock_key_of(pool.id, key),
                     [this, unit = unit_of(pool.copies, key), key = std::string(key), found = std::move(found),
                      drop = std::move(drop), done = std::move(done)]() mutable {
                       if (const status fine = may(*now(), unit, key); !fine) {
                         if (found && drop) drop(*found);
                         return done(fine.error());
                       }
                       done(std::move(found));
                     });
}

// Pins those whose keys nobody is changing and that this server serves. The others are looked up one by one, which
// waits for the change, says who has the key, or repairs damage.
result<store::pinned_run> cluster_service::pin_run(store::session_id session, store::pool_id pool,
                                                   std::span<const std::string_view> keys,
                                                   const store::get_options& options) {
  const auto known = pools_.find(pool);
  if (!known || known->copies == 0) return engine_.pin_run(session, pool, keys, options);
  auto out = engine_.pin_run(session, pool, keys, options);
  if (!out) return out;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    store::pinned_run::pinned& one = out->values[i];
    if (one.refusal.code == EBADMSG) one.refusal = {0, {}};
    if (!one.is_pinned) continue;
    // As in end_read(): this read need not see a change that begins from here on.
    if (serializer_.is_free(lock_key_of(pool, keys[i])) && may(*now(), unit_of(known->copies, keys[i]), keys[i])) continue;
    (void)engine_.unpin(session, out->first + i);
    one.is_pinned = false;
    one.segments = store::segment_list();
  }
  return out;
}

void cluster_service::lookup_async(store::session_id session, store::pool_id pool, std::string_view key,
                                   const store::get_options& options, store::completion<store::pinned_value> done) {
  const auto known = pools_.find(pool);
  if (!known || known->copies == 0) return engine_.lookup_async(session, pool, key, options, std::move(done));
  if (const status fine = may(*now(), unit_of(known->copies, key), key); !fine) return done(fine.error());
  auto drop = [this, session](const store::pinned_value& value) { (void)engine_.unpin(session, value.pin); };
  auto end = [this, known = *known, key = std::string(key), drop, done](result<store::pinned_value> found) {
    end_read<store::pinned_value>(known, key, std::move(found), drop, done);
  };
  engine_.lookup_async(
      session, pool, key, options,
      [this, known = *known, key = std::string(key), session, options, end](result<store::pinned_value> found) {
        if (found || found.code() != EBADMSG || known.copies < 2) return end(std::move(found));
        heal(known, key, [this, known, key, session, options, end, reason = found.error()](const status& healed) {
          if (!healed) return end(reason);
          engine_.lookup_async(session, known.id, key, options, end);
        });
      });
}

void cluster_service::stat_async(store::pool_id pool, std::string_view key, store::completion<store::value_info> done) {
  const auto known = pools_.find(pool);
  if (!known || known->copies == 0) return done(engine_.stat(pool, key));
  if (const status fine = may(*now(), unit_of(known->copies, key), key); !fine) return done(fine.error());
  end_read<store::value_info>(*known, key, engine_.stat(pool, key), nullptr, std::move(done));
}

// ---- A damaged value -----------------------------------------------------------------------------------------------------

struct cluster_service::healing {
  known_pool pool;
  std::string key, turn;
  store::value_info info;
  std::vector<peer_name> others;
  store_protocol::copy_terms terms;
  std::function<void(const status&)> callback;
  status last = failure{EBADMSG, "there is no other copy"};
};

void cluster_service::heal(const known_pool& pool, const std::string& key, std::function<void(const status&)> callback) {
  const auto info = engine_.stat(pool.id, key);
  if (!info) return callback(info.error());
  const auto repair = std::make_shared<healing>();
  repair->pool = pool;
  repair->key = key;
  repair->turn = lock_key_of(pool.id, key);
  repair->info = *info;
  repair->callback = std::move(callback);
  const auto snapshot = now();
  if (!snapshot->view) return repair->callback(repair->last);
  const placement& entry = snapshot->view->map.units[unit_of(pool.copies, key)];
  for (const auto& name : entry.copies) {
    const auto server = snapshot->view->map.servers.find(name);
    if (name != options_.name && server != snapshot->view->map.servers.end())
      repair->others.push_back({name, server->second.endpoint, server->second.run});
  }
  repair->terms = {snapshot->view->map.epoch, members_->run(), info->version, 0};
  serializer_.take(repair->turn, [this, repair] { heal_from(repair); });
}

void cluster_service::heal_from(const std::shared_ptr<healing>& repair) {
  const auto end = [this, repair](const status& done) {
    serializer_.leave(repair->turn);
    repair->callback(done);
  };
  if (repair->others.empty()) return end(repair->last);
  const peer_name peer = repair->others.back();
  repair->others.pop_back();
  links_.reach(peer, repair->pool.name, [this, repair, end](const result<peer_pool>& target) {
    if (!target) {
      repair->last = target.error();
      return heal_from(repair);
    }
    const auto bytes = std::make_shared<std::vector<std::byte>>(repair->info.length_bytes);
    store_client::get_request options;
    options.verify = true;
    auto one = target->connection->make_get(target->pool, repair->key,
                                            {reinterpret_cast<std::uint64_t>(bytes->data()), bytes->size(), {}}, options);
    one->fields.copy = repair->terms;
    one->callback = [this, repair, end, bytes](store_client::operation& got) {
      if (got.got.status != 0 || got.got.result.version != repair->info.version || got.got.moved_bytes != bytes->size()) {
        repair->last = failure{EBADMSG, got.got.status != 0 ? got.got.text : "the other copy has another version"};
        return heal_from(repair);
      }
      store::put_options same;
      same.level = repair->info.level;
      same.user_flags = repair->info.user_flags;
      same.owner = repair->info.owner;
      same.copy = {repair->info.version, repair->info.version};
      engine_.put_async(
          repair->pool.id, repair->key, *bytes, same, [this, repair, end](const result<store::put_result>& put) {
            if (put) ++healed_;
            log_("cluster_healed",
                 repair->pool.name + ": " + (put ? "a damaged value was taken from another copy" : put.error().message));
            end(put ? status{} : status(put.error()));
          });
    };
    target->connection->start(one);
  });
}

// ---- Between servers -----------------------------------------------------------------------------------------------------

std::uint16_t cluster_service::request_group(store::pool_id pool, std::string_view key) const {
  const auto known = pools_.find(pool);
  return known && known->copies > 0 ? static_cast<std::uint16_t>(unit_of(known->copies, key) + 1) : std::uint16_t{0};
}

// A put that this server accepted, and that the current primary does not have, is undone by the catch-up. Its outcome
// is forgotten, because the client may repeat it to this server later and must not hear that it is done.
status cluster_service::forget_requests(const cluster_map& map, const unit_set& units) {
  return engine_.forget_requests([&](std::uint16_t group) {
    const unsigned unit = group - 1u;
    return group != 0 && unit < kPlacements && units[unit] && map.units[unit].fills(options_.name);
  });
}

bool cluster_service::is_idle() const {
  return std::all_of(changes_.begin(), changes_.end(), [](const auto& count) { return count.load() == 0; });
}

// The newest map here; it is not older than the sender's.
result<view_ptr> cluster_service::view_for(const store_protocol::copy_terms& terms) {
  auto view = members_->view();
  if (terms.epoch <= view->map.epoch) return view;
  members_->wake();
  return failure{EAGAIN, "this server does not know that epoch yet"};
}

// From here on, the sender's changes come on this connection or later ones. Changes on earlier connections may still be
// in the network or wait here for room for seconds, and would overwrite what the catch-up brings.
status cluster_service::begin_being_filled(const store_protocol::copy_terms& terms, std::uint64_t connection,
                                           const cluster_map& map, const unit_set& units) {
  {
    const std::unique_lock gate(copies_gate_);
    const std::lock_guard hold(lock_);
    for (unsigned unit = 0; unit < kPlacements; ++unit)
      if (units[unit]) catch_ups_[unit] = {terms.sender, connection};
  }
  if (const status settled = engine_.settle(); !settled) return settled;
  return forget_requests(map, units);
}

bool cluster_service::is_late(unsigned unit, std::uint64_t sender, std::uint64_t connection) const {
  const std::lock_guard hold(lock_);
  return catch_ups_[unit].sender == sender && connection < catch_ups_[unit].connection;
}

status cluster_service::admits_copy(const store_protocol::copy_terms& terms, std::uint64_t connection, store::pool_id pool,
                                    std::string_view key, bool write) {
  const auto known = pools_.find(pool);
  if (!known) return known.error();
  if (known->copies == 0) return failure{ENXIO, "the pool does not belong to the cluster on this server yet"};
  const auto seen = view_for(terms);
  if (!seen) return seen.error();
  const view_ptr& view = *seen;
  const unsigned unit = unit_of(known->copies, key);
  const placement& entry = view->map.units[unit];
  const bool has_place = entry.has(options_.name) || (write && entry.fills(options_.name));
  const bool late = write && is_late(unit, terms.sender, connection);
  if (is_served_by(view->map, unit, terms.sender) && has_place && !late) return {};
  ++refused_copies_;
  if (late) return failure{ECONNABORTED, "sent on a connection from before this copy was filled"};
  return failure{EREMOTE, format("the sender does not serve slot %u in epoch %llu", store_client::slot_of(key),
                                 static_cast<unsigned long long>(view->map.epoch))};
}

result<std::string> cluster_service::differing_keys(const store_protocol::copy_terms& terms, std::uint64_t connection,
                                                    store::pool_id pool, const store_protocol::tail& fields,
                                                    std::string_view end, std::string_view theirs, bool knows_requests) {
  const auto known = pools_.find(pool);
  if (!known) return known.error();
  const auto units = units_in(fields.prefix.value_or(""));
  if (!units || known->copies == 0) return failure{EPROTO, "a comparison of keys without units of a pool of the cluster"};
  const auto seen = view_for(terms);
  if (!seen) return seen.error();
  const view_ptr& view = *seen;
  // A server of an earlier release begins a catch-up with this request.
  if (!knows_requests && fields.after.value_or("").empty())
    if (const status begun = begin_being_filled(terms, connection, view->map, *units); !begun) return begun.error();
  return keys_that_differ(engine_, *known, *units, fields.after.value_or(""), end, theirs);
}

// Only for units whose catch-up is running here, and only from their primary, whose outcomes count.
status cluster_service::take_requests(const store_protocol::copy_terms& terms, std::uint64_t connection,
                                      const std::string& units, std::string_view outcomes) {
  const auto named = units_in(units);
  if (!named) return failure{EPROTO, "answers to requests without units"};
  const auto seen = view_for(terms);
  if (!seen) return seen.error();
  const view_ptr& view = *seen;
  const auto filled_by_sender = [&](unsigned unit) {
    return is_served_by(view->map, unit, terms.sender) && view->map.units[unit].fills(options_.name);
  };
  if (outcomes.empty()) {
    // All or nothing: outcomes from an earlier catch-up, by a server that has lost its changes since, must not outlive
    // this one.
    for (unsigned unit = 0; unit < kPlacements; ++unit)
      if ((*named)[unit] && !filled_by_sender(unit)) {
        ++refused_copies_;
        return failure{EREMOTE, format("the sender does not fill unit %u here in epoch %llu", unit,
                                       static_cast<unsigned long long>(view->map.epoch))};
      }
    return begin_being_filled(terms, connection, view->map, *named);
  }
  return engine_.remember_requests(outcomes, [&](std::uint16_t group) {
    const unsigned unit = group - 1u;
    return group != 0 && unit < kPlacements && (*named)[unit] && filled_by_sender(unit);
  });
}

std::uint64_t cluster_service::epoch() const {
  const auto snapshot = now();
  return snapshot->view ? snapshot->view->map.epoch : 0;
}

result<std::string> cluster_service::map_text() const { return to_text(members_->view()->map); }

// ---- Pools ---------------------------------------------------------------------------------------------------------------

result<store::pool_info> cluster_service::create_pool(const std::string& name, const store::pool_options& options,
                                                      const store::request_key& request) {
  auto made = pools_.create(*members_, name, options, request);
  pools_touched_ = true;
  return made;
}
result<store::pool_info> cluster_service::configure_pool(store::pool_id id, const store::pool_options& options) {
  return pools_.configure(*members_, id, options);
}
status cluster_service::delete_pool(store::pool_id id) { return pools_.drop(*members_, id); }

result<store::pool_info> cluster_service::find_pool(const std::string& name) {
  if (const status refreshed = members_->refresh(kRefreshTimeout); !refreshed) return refreshed.error();
  if (const status done = pools_.follow(*members_->view(), *members_); !done && done.code() != EAGAIN)
    log_("cluster_pool", done.error().message);
  pools_touched_ = true;
  return engine_.find_pool(name);
}

// ---- The map -------------------------------------------------------------------------------------------------------------

// A pool may not be made while the disk is full, nor deleted while values are on their way to it, so failures are repeated.
// So are pools that a request made here: one that is deleted again before the next look at etcd leaves no trace in the
// views.
void cluster_service::follow_pools(const cluster_view& view) {
  const status done = pools_.follow(view, *members_);
  const std::string reason = done ? std::string() : done.error().message;
  if (!done && done.code() != EAGAIN && reason != pools_failure_) log_("cluster_pool", reason);
  pools_failure_ = reason;
  pools_differ_ = !done;
  pools_followed_ns_ = monotonic_ns();
}

void cluster_service::seen(const view_ptr& view) {
  const auto before = now();
  const bool serving = members_->holds_lease();
  const bool is_touched = pools_touched_.exchange(false);
  if (before->view != view || is_touched || (pools_differ_ && monotonic_ns() - pools_followed_ns_ > kFollowAgainNs))
    follow_pools(*view);
  auto next = std::make_shared<service_state>();
  next->view = view;
  next->run = members_->run();
  const auto me = view->map.servers.find(options_.name);
  const bool known = serving && me != view->map.servers.end() && me->second.run == members_->run();
  bool gained = false;
  for (unsigned unit = 0; unit < kPlacements; ++unit) {
    const placement& entry = view->map.units[unit];
    next->mine[unit] = known && !entry.copies.empty() && entry.copies.front() == options_.name;
    next->handing_over[unit] = next->mine[unit] && !successor_of(view->map, unit, options_.name).empty();
    gained = gained || (next->mine[unit] && !before->mine[unit]);
  }
  // Puts of another server that did not reach this one had versions of their own.
  if (gained) engine_.skip_versions(kTakeOverVersions);
  copies_.act_by(view, known, members_->run());
  {
    const std::lock_guard hold(lock_);
    service_state_ = next;
  }
  filler_.act_by(view, known, members_->run());
  const bool hands_over = std::find(next->handing_over.begin(), next->handing_over.end(), true) != next->handing_over.end();
  if (hands_over || !filler_.finished().empty() || !copies_.suspects().empty()) members_->wake();
}

bool cluster_service::propose_changes(const cluster_view& view, cluster_map& next) {
  bool changed = false;
  const auto serves = [&](unsigned unit) {
    return view.map.units[unit].copies == next.units[unit].copies && !next.units[unit].copies.empty() &&
           next.units[unit].copies.front() == options_.name;
  };
  for (const auto& name : copies_.suspects()) {
    log_("cluster_copy_dropped", name + " does not take what it is sent");
    for (placement& entry : next.units) {
      if (entry.copies.empty() || entry.copies.front() != options_.name) continue;
      changed = std::erase(entry.copies, name) + std::erase(entry.joining, name) > 0 || changed;
    }
  }
  for (const auto& one : filler_.finished()) {
    placement& entry = next.units[one.unit];
    const auto server = next.servers.find(one.name);
    if (!serves(one.unit) || !entry.fills(one.name) || server == next.servers.end() || server->second.run != one.run)
      continue;
    if (!copies_.promise(one.unit, one.name, one.catch_up_number, view.map_revision)) continue;
    std::erase(entry.joining, one.name);
    entry.copies.push_back(one.name);
    changed = true;
  }
  const auto mine = now();
  for (unsigned unit = 0; unit < kPlacements; ++unit) {
    if (!mine->handing_over[unit] || !serves(unit) || changes_[unit].load() != 0) continue;
    const std::string successor = successor_of(next, unit, options_.name);
    if (successor.empty() || !view.map.units[unit].has(successor)) continue;
    auto& copies = next.units[unit].copies;
    std::erase(copies, successor);
    copies.insert(copies.begin(), successor);
    changed = true;
  }
  return changed;
}

std::string cluster_service::metrics() const {
  const auto snapshot = now();
  const auto line = [](const char* name, const char* type, const char* help, double value) {
    return format("# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, value);
  };
  const auto count = [&](const char* name, const char* help, std::uint64_t value) {
    return line(name, "counter", help, static_cast<double>(value));
  };
  const auto serves = std::count(snapshot->mine.begin(), snapshot->mine.end(), true);
  const auto moving = std::count(snapshot->handing_over.begin(), snapshot->handing_over.end(), true);
  return line("peerlane_store_cluster_epoch", "gauge", "Epoch of the slot map that this server uses.",
              static_cast<double>(epoch())) +
         line("peerlane_store_cluster_lease_seconds", "gauge", "Until this server stops serving without etcd.",
              1e-9 * static_cast<double>(members_->lease_left_ns())) +
         line("peerlane_store_cluster_units", "gauge", "Units of 64 slots (in three tables) that it serves.",
              static_cast<double>(serves)) +
         line("peerlane_store_cluster_units_handing_over", "gauge", "Of them those on their way to another server.",
              static_cast<double>(moving)) +
         line("peerlane_store_cluster_units_waiting", "gauge",
              "Units with a complete copy in a data folder that this server had and has no more.",
              snapshot->view ? left_behind(snapshot->view->map, options_.name) : 0) +
         count("peerlane_store_cluster_moved_total", "Requests for keys of other servers.", moved_.load()) +
         count("peerlane_store_cluster_not_now_total", "Requests that were asked to come again.", not_now_.load()) +
         count("peerlane_store_cluster_copies_sent_total", "Values and erasures sent to other copies.",
               copies_.sent.load()) +
         count("peerlane_store_cluster_copies_failed_total", "Of them those that were not taken.", copies_.failed.load()) +
         count("peerlane_store_cluster_copies_refused_total", "Copies from servers that no longer serve the slot.",
               refused_copies_.load()) +
         count("peerlane_store_cluster_keys_compared_total", "Keys held against a joining copy's.",
               filler_.compared.load()) +
         count("peerlane_store_cluster_keys_filled_total", "Of them those that were sent.", filler_.pushed.load()) +
         count("peerlane_store_cluster_healed_total", "Damaged values taken from another copy.", healed_.load()) +
         count("peerlane_store_cluster_rejoins_total", "Times that the lease was lost.", members_->rejoins());
}

}  // namespace pl::store_cluster
