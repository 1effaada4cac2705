// SPDX-License-Identifier: Apache-2.0
// Requests that are not about a single value: handshake, the arena's descriptor, pools, searches, metrics.
#include "base/clock.hpp"
#include "base/text.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {

using store_protocol::opcode;

bool session::dispatch_other(const request_ptr& request, std::string_view key, std::string_view body) {
  const auto name = [&] { return std::string(key); };
  switch (request->head.op) {
    case opcode::hello:
      do_handshake(request);
      return true;
    case opcode::ping:
    case opcode::unpin:
      answer(request, status{});
      return true;  // the tail's unpins are done
    case opcode::attach:
      attach(request);
      return true;
    case opcode::rings:
      open_rings(request);
      return true;
    case opcode::device_link:
      link_device(request);
      return true;
    case opcode::pool_create:
      pool_create(request, name());
      return true;
    case opcode::pool_open:
      pool_open(request, key);
      return true;
    case opcode::pool_set:
      pool_set(request, name());
      return true;
    case opcode::pool_delete:
      pool_delete(request, name());
      return true;
    case opcode::pool_list:
      pool_list(request);
      return true;
    case opcode::stats:
      stats(request);
      return true;
    case opcode::cluster_map:
      cluster_map(request);
      return true;
    case opcode::sync_requests:
      sync_requests(request, body);
      return true;
    case opcode::watch:
    case opcode::watch_next:
    case opcode::watch_end:
      dispatch_watch(request, key);
      return true;
    case opcode::find:
    case opcode::sync_keys:
    case opcode::sync:
      if (!pools_.contains(request->head.pool_id))
        answer(request,
               {ENXIO, format("pool %u is not open on this connection: open it by its name", request->head.pool_id)});
      else if (request->head.op == opcode::sync_keys) sync_keys(request, key, body);
      else request->head.op == opcode::find ? find(request) : sync(request);
      return true;
    default:
      return false;
  }
}

void session::do_handshake(const request_ptr& request) {
  const auto& theirs = request->fields.handshake;
  if (!theirs) return fail_protocol({EPROTO, "a handshake without versions"});
  if (theirs->lowest_version > store_protocol::kVersion || theirs->highest_version < store_protocol::kVersion) {
    ++parts_.counters.refused;
    return answer(request, {EPROTO, format("this server speaks version %u, the client %u to %u: use releases that share one",
                                           store_protocol::kVersion, theirs->lowest_version, theirs->highest_version)});
  }
  finish_handshake();
  if (theirs->session != 0 && wire_->other().pid > 0) parts_.orphans.take_back(theirs->session, wire_->other().pid);
  parts_.log.write(event_log::level::debug, "greeted",
                   {{"peer", wire_->other().origin}, {"principal", wire_->other().principal}, {"agent", theirs->agent}});
  store_protocol::tail fields;
  auto& ours = fields.handshake.emplace();
  const bool may_map = parts_.access.mapping_of(wire_->other()) != mapping::none;
  ours.capabilities = store_protocol::capability::sync_requests | store_protocol::capability::arrived |
                      store_protocol::capability::cache | store_protocol::capability::batches |
                      store_protocol::capability::watch | (may_map ? store_protocol::capability::shm : 0) |
                      (wire_->may_ring() ? store_protocol::capability::rings : 0) |
                      (wire_->other().way == store_protocol::path::unix_socket
                           ? store_protocol::capability::device | store_protocol::capability::device_batches
                           : 0);
  ours.instance = parts_.instance;
  ours.session = engine_session_;
  ours.agent = "peerlane store";
  join_ucx(request, std::move(fields));
}

void session::attach(const request_ptr& request) {
  if (wire_->other().way != store_protocol::path::unix_socket)
    return answer(request, {ENOTSUP, "the arena's descriptor travels over the unix socket only"});
  const auto may = parts_.access.mapping_of(wire_->other());
  if (may == mapping::none)
    return answer(request,
                  {EACCES, format("%s may not map the store's memory, which holds values of several pools: name it in "
                                  "the server's \"mappers\" or \"map_readers\"",
                                  wire_->other().principal.c_str())});
  const auto& arena = parts_.engine.arena();
  mapped_ = may;
  store_protocol::tail fields;
  fields.memory = store_protocol::arena{arena.size_bytes, arena.chunk_bytes, may == mapping::read};
  answer_with_descriptor(request, fields, may == mapping::read ? arena.read_only_fd : arena.fd);
}

// Switches to the rings after the answer has gone through the socket, because descriptors are sent before other output
// (outbox.cpp).
void session::open_rings(const request_ptr& request) {
  const auto made = wire_->open_rings();
  if (!made) return answer(request, made.error());
  ++parts_.counters.rings;
  answer_with_descriptor(request, {}, *made);
}

void session::answer_with_descriptor(const request_ptr& request, const store_protocol::tail& fields, int fd) {
  --in_flight_;
  promised_bytes_ -= std::exchange(request->promised_bytes, 0);
  count_and_log(*request, {}, monotonic_ns() - request->began_ns);
  auto head = request->head;
  head.flags = store_protocol::flag::reply;
  head.body_bytes = 0;
  std::string frame;
  (void)store_protocol::encode(head, {}, fields, frame);
  out_.add_with_descriptor(std::move(frame), fd);
  if (!parsing_) out_.flush(shared_from_this());
}

// ---- Pools ---------------------------------------------------------------------------------------------------------------

result<pool_policy> session::admin_of(std::string_view name) const {
  const auto found = parts_.engine.find_pool(name);
  if (!found) return found.error();
  pool_policy policy = policy_of(*found);
  if (!parts_.access.rights_of(wire_->other(), policy).admin)
    return failure{EACCES, format("%s may not change pool %s: its access list is \"%s\"", wire_->other().principal.c_str(),
                                  policy.name.c_str(), policy.access.c_str())};
  return policy;
}

void session::pool_create(const request_ptr& request, std::string name) {
  auto settings = request->fields.settings.value_or(store_protocol::pool_settings{});
  if (!parts_.access.is_admin(wire_->other()))
    return answer(request, {EACCES, format("%s may not make pools: name it in the server's \"admins\"",
                                           wire_->other().principal.c_str())});
  if (const auto fine = store::check_given(settings.level); !fine) return answer(request, fine.error());
  if (const auto fine = check_access_list(settings.access); !fine) return answer(request, fine.error());
  if (const auto fine = complete(settings, request->fields.cache.copy()); !fine) return answer(request, fine.error());
  const auto cache = request->fields.cache.value_or(store_protocol::cache_settings{});
  parts_.log.write(event_log::level::info, "pool_create", {{"pool", name}, {"principal", wire_->other().principal}});
  aside<store::pool_info>(
      request,
      [this, name, settings, cache, number = request_of(request->fields)] {
        return parts_.values.create_pool(name, options_of(settings, cache), number);
      },
      [me = shared_from_this(), request](store::pool_info made) {
        me->pools_[made.id] = policy_of(made);
        request->head.pool_id = made.id;
        store_protocol::tail fields;
        fields.settings = settings_of(made);
        fields.cache_is = cache_settings_of(made);
        me->answer(request, {}, std::move(fields));
      });
}

void session::pool_open(const request_ptr& request, std::string_view name) {
  const auto found = parts_.engine.find_pool(name);
  if (found) return pool_opened(request, *found);
  aside<store::pool_info>(
      request, [this, name = std::string(name)] { return parts_.values.find_pool(name); },
      [me = shared_from_this(), request](const store::pool_info& pool) { me->pool_opened(request, pool); });
}

void session::pool_opened(const request_ptr& request, const store::pool_info& pool) {
  const auto* found = &pool;
  const auto policy = policy_of(*found);
  const rights may = parts_.access.rights_of(wire_->other(), policy);
  if (!may.read && !may.write && !may.admin)
    return answer(request, {EACCES, format("%s may not open pool %s: its access list is \"%s\"",
                                           wire_->other().principal.c_str(), policy.name.c_str(), policy.access.c_str())});
  pools_[found->id] = policy;
  request->head.pool_id = found->id;
  store_protocol::tail fields;
  fields.settings = settings_of(*found);
  fields.cache_is = cache_settings_of(*found);
  const auto& now = found->counts;
  fields.statistics = {found->keys,       found->bytes, now.hits,    now.misses,       now.evicted,
                       now.evicted_bytes, now.expired,  now.spilled, now.memory_bytes, now.disk_bytes};
  answer(request, {}, std::move(fields));
}

void session::pool_set(const request_ptr& request, std::string name) {
  const auto policy = admin_of(name);
  if (!policy) return answer(request, policy.error());
  auto settings = request->fields.settings.value_or(store_protocol::pool_settings{});
  if (const auto fine = store::check_given(settings.level); !fine) return answer(request, fine.error());
  if (const auto fine = check_access_list(settings.access); !fine) return answer(request, fine.error());
  // Settings of a cache that the request omits stay as they are, because clients of earlier releases do not know them.
  const auto present = parts_.engine.find_pool(name);
  const auto before = present ? cache_settings_of(*present) : std::nullopt;
  if (before) settings.is_cache = true;
  if (const auto fine = complete(settings, request->fields.cache.copy()); !fine) return answer(request, fine.error());
  auto cache = request->fields.cache.value_or(before.value_or(store_protocol::cache_settings{}));
  if (before) cache.policy = before->policy;
  parts_.log.write(event_log::level::info, "pool_set", {{"pool", name}, {"principal", wire_->other().principal}});
  aside<store::pool_info>(
      request,
      [this, id = policy->id, settings, cache] { return parts_.values.configure_pool(id, options_of(settings, cache)); },
      [me = shared_from_this(), request](store::pool_info now) {
        me->parts_.policy_changed(policy_of(now));
        store_protocol::tail fields;
        fields.settings = settings_of(now);
        fields.cache_is = cache_settings_of(now);
        me->answer(request, {}, std::move(fields));
      });
}

void session::policy_changed(const pool_policy& changed) {
  asio::post(home_, [me = shared_from_this(), changed] {
    // Two changes of a pool may be reported in either order; the engine has the later one.
    const auto known = me->parts_.engine.pool(changed.id);
    const pool_policy now = known ? policy_of(*known) : changed;
    if (const auto found = me->pools_.find(now.id); found != me->pools_.end()) found->second = now;
    const std::string& principal = me->wire_->other().principal;
    if (!me->parts_.access.rights_of(me->wire_->other(), now).read)
      me->end_watches({EACCES, format("%s may not read pool %s any more", principal.c_str(), now.name.c_str())}, now.id);
  });
}

void session::pool_delete(const request_ptr& request, std::string name) {
  const auto policy = admin_of(name);
  if (!policy) return answer(request, policy.error());
  parts_.log.write(event_log::level::info, "pool_delete", {{"pool", name}, {"principal", wire_->other().principal}});
  aside<bool>(
      request,
      [this, id = policy->id]() -> result<bool> {
        const auto done = parts_.values.delete_pool(id);
        if (!done) return done.error();
        return true;
      },
      [me = shared_from_this(), request, id = policy->id](bool) {
        me->pools_.erase(id);
        me->answer(request, status{});
      });
}

// Counters of the pools that the client may open, and of the client itself; an admin gets all principals.
void session::stats(const request_ptr& request) {
  auto pools = parts_.engine.list_pools();
  std::erase_if(pools, [&](const store::pool_info& pool) {
    const rights may = parts_.access.rights_of(wire_->other(), policy_of(pool));
    return !may.read && !may.write && !may.admin;
  });
  const bool sees_all = parts_.access.is_admin(wire_->other());
  const auto held = parts_.quotas->list(sees_all ? std::string() : wire_->other().principal);
  answer(request, {}, {}, parts_.counters.text(parts_.engine.stats(), pools, held) + parts_.values.metrics());
}

// Pools by name, starting after `after`. What does not fit into the frame goes into the next page.
void session::pool_list(const request_ptr& request) {
  const std::string after = request->fields.after.value_or("");
  const std::uint64_t most = request->head.value_bytes == 0 ? store::kMaxPools : request->head.value_bytes;
  std::string body, last;
  std::uint64_t listed = 0;
  bool more = false;
  for (const auto& pool : parts_.engine.list_pools()) {
    const rights may = parts_.access.rights_of(wire_->other(), policy_of(pool));
    if ((!may.read && !may.write && !may.admin) || (!after.empty() && pool.name <= after)) continue;
    std::string entry;
    store_protocol::append(entry, store_protocol::pool_entry{pool.name, pool.keys, pool.bytes, settings_of(pool)});
    more = listed == most || body.size() + entry.size() > store_protocol::kMaxBodyBytes;
    if (more) break;
    body += entry;
    last = pool.name;
    ++listed;
  }
  store_protocol::tail fields;
  if (more) fields.after = last;
  answer(request, {}, std::move(fields), body, 0, more ? store_protocol::flag::more : std::uint16_t{0});
}

// ---- Searching -----------------------------------------------------------------------------------------------------------

result<std::pair<store::find_page, std::optional<store_client::unit_list>>> session::listed_during(
    store::pool_id pool, const std::function<result<store::find_page>()>& search) const {
  const auto before = parts_.values.listed(pool);
  if (!before) return before.error();
  auto found = search();
  if (!found) return found.error();
  auto units = parts_.values.listed(pool);
  if (!units) return units.error();
  if (before->has_value() && units->has_value()) **units &= **before;
  return std::pair(*std::move(found), *units);
}

void session::find(const request_ptr& request) {
  const auto& policy = pools_.at(request->head.pool_id);
  if (!parts_.access.rights_of(wire_->other(), policy).read)
    return answer(request,
                  {EACCES, format("%s may not read pool %s", wire_->other().principal.c_str(), policy.name.c_str())});
  store::find_options options;
  options.prefix = request->fields.prefix.value_or("");
  options.regex = request->fields.regex.value_or("");
  options.after = request->fields.after.value_or("");
  if (request->head.value_bytes > 0 && request->head.value_bytes < options.limit) options.limit = request->head.value_bytes;
  options.deadline = request->deadline;
  const auto pool = request->head.pool_id;
  struct page {
    std::string body, last;
    bool more = false;
    std::optional<store_client::unit_list> listed;
  };
  aside<page>(
      request,
      [this, pool, options]() -> result<page> {
        // Searches for a client that has left would delay others, and a store that stops.
        if (gone_ || parts_.halted) return failure{ECANCELED, "no client waits for the page any more"};
        auto now = options;
        now.deadline = std::min(options.deadline, clock::now() + kLongestSearch);
        auto listed = listed_during(pool, [&] { return parts_.engine.find(pool, now); });
        if (!listed) return listed.error();
        const auto& [found, units] = *listed;
        page out{{}, found.last, found.more, units};
        for (std::size_t i = 0; i < found.keys.size(); ++i) {
          const auto& key = found.keys[i];
          const auto& value = found.values[i];
          if (!units || store_client::contains(*units, key))
            store_protocol::append(out.body, store_protocol::key_entry{key, value.length_bytes, value.version});
        }
        if (out.body.size() > store_protocol::kMaxBodyBytes)
          return failure{EMSGSIZE, "the page is longer than a frame: ask for fewer keys at a time"};
        return out;
      },
      [me = shared_from_this(), request](page found) {
        store_protocol::tail fields;
        fields.after = found.last;
        if (found.listed) fields.listed = store_client::to_bytes(*found.listed);
        me->answer(request, {}, std::move(fields), found.body, 0,
                   found.more ? store_protocol::flag::more : std::uint16_t{0});
      },
      fair_workers::kind::search);
}

// ---- Clusters ------------------------------------------------------------------------------------------------------------

void session::cluster_map(const request_ptr& request) {
  const auto text = parts_.values.map_text();
  if (!text) return answer(request, text.error());
  store_protocol::tail fields;
  fields.epoch = parts_.values.epoch();
  answer(request, {}, std::move(fields), *text);
}

void session::sync_keys(const request_ptr& request, std::string_view key, std::string_view body) {
  if (!request->fields.copy) return answer(request, {EPROTO, "a comparison of keys without a sender"});
  if (!parts_.access.is_admin(wire_->other()))
    return answer(request, {EACCES, format("%s may not compare keys", wire_->other().principal.c_str())});
  aside<std::string>(
      request,
      [this, request, end = std::string(key), theirs = std::string(body)] {
        return parts_.values.differing_keys(*request->fields.copy, engine_session_, request->head.pool_id, request->fields,
                                            end, theirs, (request->head.flags & store_protocol::flag::knows_requests) != 0);
      },
      [me = shared_from_this(), request](const std::string& list) { me->answer(request, {}, {}, list); });
}

void session::sync_requests(const request_ptr& request, std::string_view body) {
  if (!request->fields.copy) return answer(request, {EPROTO, "answers to requests without a sender"});
  if (!parts_.access.is_admin(wire_->other()))
    return answer(request, {EACCES, format("%s may not report outcomes of requests", wire_->other().principal.c_str())});
  aside<bool>(
      request,
      [this, request, outcomes = std::string(body)]() -> result<bool> {
        const status done = parts_.values.take_requests(*request->fields.copy, engine_session_,
                                                        request->fields.prefix.value_or(std::string()), outcomes);
        if (!done) return done.error();
        return true;
      },
      [me = shared_from_this(), request](bool) { me->answer(request, status{}); });
}

// Reports the units of which this server had all changes when it began.
void session::sync(const request_ptr& request) {
  const auto listed = parts_.values.listed(request->head.pool_id);
  if (!listed) return answer(request, listed.error());
  const auto units = *listed;
  parts_.engine.sync_async(request->head.pool_id, [me = shared_from_this(), request, units](result<store::durability> done) {
    me->run_on_home_thread([me, request, units, done = std::move(done)] {
      if (!done) return me->answer(request, done.error());
      store_protocol::tail fields;
      if (units) fields.listed = store_client::to_bytes(*units);
      fields.result.emplace().reached = *done;
      me->answer(request, {}, std::move(fields));
    });
  });
}

}  // namespace pl::store_server
