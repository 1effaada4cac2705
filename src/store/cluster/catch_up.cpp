// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/catch_up.hpp"

#include <condition_variable>
#include <future>
#include <optional>

#include "base/text.hpp"
#include "os/blocked_signals.hpp"

namespace pl::store_cluster {
namespace {

constexpr std::size_t kPageKeys = 500;  // each at most 4 KiB: a page fits a frame
constexpr std::size_t kMaxPageBytes = 3u << 20;
constexpr std::size_t kRequestBytes = 1u << 20;
constexpr int kPushesInFlight = 32;
constexpr int kPageTimeoutMs = 10'000;

result<peer_pool> reach_now(peer_links& links, const peer_name& peer, const std::string& pool) {
  std::promise<result<peer_pool>> reached;
  auto answer = reached.get_future();
  links.reach(peer, pool, [&](const result<peer_pool>& target) { reached.set_value(target); });
  return answer.get();
}

}  // namespace

std::string to_bytes(const unit_set& units) {
  std::string out(store_client::kPlacements / 8, '\0');
  for (std::size_t i = 0; i < units.size(); ++i)
    if (units[i]) out[i / 8] = static_cast<char>(out[i / 8] | 1 << i % 8);
  return out;
}

std::optional<unit_set> units_in(std::string_view bytes) {
  if (bytes.size() != store_client::kPlacements / 8) return std::nullopt;
  unit_set out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = (bytes[i / 8] >> i % 8 & 1) != 0;
  return out;
}

std::string lock_key_of(store::pool_id pool, std::string_view key) {
  std::string out(reinterpret_cast<const char*>(&pool), sizeof pool);
  return out.append(key);
}

catch_up::catch_up(store::engine& engine, const cluster_pools& pools, key_serializer& serializer, peer_links& links,
                   replicator& copies, std::string self, log_t log)
    : engine_(engine),
      pools_(pools),
      serializer_(serializer),
      links_(links),
      copies_(copies),
      self_(std::move(self)),
      log_(std::move(log)) {}

catch_up::~catch_up() = default;

void catch_up::stop() {
  stopping_ = true;
  std::map<peer_name, job> jobs;
  {
    const std::lock_guard hold(lock_);
    jobs.swap(jobs_);
  }
  for (auto& [name, one] : jobs)
    if (one.thread.joinable()) one.thread.join();
}

void catch_up::act_by(const view_ptr& now, bool serving, std::uint64_t run) {
  const cluster_map& map = now->map;
  std::map<peer_name, unit_set> wanted;
  const std::lock_guard hold(lock_);
  const auto current = [&](const filled& one) {
    const auto known = map.servers.find(one.name);
    return serving && known != map.servers.end() && known->second.run == one.run && map.units[one.unit].fills(one.name) &&
           map.units[one.unit].copies.front() == self_ && copies_.fills(one.unit, one.name, one.catch_up_number);
  };
  std::erase_if(finished_, [&](const filled& one) { return !current(one); });
  for (auto next = jobs_.begin(); next != jobs_.end();) {
    const auto position = next++;
    if (!position->second.ended) continue;
    position->second.thread.join();
    jobs_.erase(position);
  }
  if (!serving || stopping_) return;
  for (unsigned unit = 0; unit < store_client::kPlacements; ++unit) {
    const placement& entry = map.units[unit];
    if (entry.copies.empty() || entry.copies.front() != self_) continue;
    for (const auto& name : entry.joining) {
      const auto known = map.servers.find(name);
      if (known == map.servers.end() || !now->alive.contains(name)) continue;
      const auto ready = finished_.lower_bound({unit, name, known->second.run, 0});
      if (ready != finished_.end() && ready->unit == unit && ready->name == name && ready->run == known->second.run)
        continue;
      wanted[{name, known->second.endpoint, known->second.run}].set(unit);
    }
  }
  for (const auto& [server, units] : wanted) {
    if (jobs_.contains(server)) continue;
    const store_protocol::copy_terms terms{map.epoch, run, 0, 0};
    auto started = try_start_thread("fills a copy", [this, peer = server, assigned = units, terms] {
      fill(peer, assigned, terms);
      const std::lock_guard done(lock_);
      if (const auto found = jobs_.find(peer); found != jobs_.end()) found->second.ended = true;
    });
    if (started) jobs_[server].thread = *std::move(started);
    // The next look at the map tries again
    else log_("cluster_fill_failed", server.name + ": " + started.error().message);
  }
}

std::vector<catch_up::filled> catch_up::finished() const {
  const std::lock_guard hold(lock_);
  return {finished_.begin(), finished_.end()};
}

void catch_up::fill(const peer_name& peer, const unit_set& units, store_protocol::copy_terms terms) {
  status done;
  // A job that is slow to reach the server may belong to an earlier run of that server. The numbers distinguish its
  // catch-up from the one begun by the current run's job, which has the changes since then.
  std::vector<std::uint64_t> numbers(units.size());
  // The catch-up begins only once the server is reached, because every change waits for it from then on.
  const auto target = reach_now(links_, peer, {});
  if (!target) done = target.error();
  const bool tells = target && (target->connection->server_capabilities() & store_protocol::capability::sync_requests) != 0;
  // No change runs meanwhile, so the number of no change can be erased with the others.
  if (done && tells) done = tell(peer, units, terms, {});
  if (done)
    for (unsigned unit = 0; unit < units.size(); ++unit)
      if (units[unit]) numbers[unit] = copies_.begin_catch_up(unit, peer.name);
  if (done && tells) done = export_requests(peer, units, terms);
  if (done) done = fill_keys(peer, units, terms, tells);
  if (!done) {
    links_.forget(peer);
    for (unsigned unit = 0; unit < units.size(); ++unit)
      if (units[unit]) copies_.end_catch_up(unit, peer.name, numbers[unit]);
    if (!stopping_) log_("cluster_fill_failed", peer.name + ": " + done.error().message);
    return;
  }
  log_("cluster_filled", format("%s: %zu units", peer.name.c_str(), units.count()));
  const std::lock_guard hold(lock_);
  for (unsigned unit = 0; unit < units.size(); ++unit)
    if (units[unit] && copies_.fills(unit, peer.name, numbers[unit]))
      finished_.insert({unit, peer.name, peer.run, numbers[unit]});
}

status catch_up::fill_keys(const peer_name& peer, const unit_set& units, const store_protocol::copy_terms& terms,
                           bool knows_requests) {
  for (const auto& pool : pools_.all()) {
    unit_set of_pool = units;
    for (unsigned unit = 0; unit < units.size(); ++unit)
      if (store_client::copies_of_unit(unit) != pool.copies) of_pool.reset(unit);
    if (of_pool.none()) continue;
    if (const status done = fill_pool(peer, pool, of_pool, terms, knows_requests); !done) return done;
  }
  return {};
}

status catch_up::fill_pool(const peer_name& peer, const known_pool& pool, const unit_set& units,
                           const store_protocol::copy_terms& terms, bool knows_requests) {
  std::string after;
  for (;;) {
    if (stopping_) return failure{ESHUTDOWN, "the server is stopping"};
    const auto more = fill_page(peer, pool, units, terms, knows_requests, after);
    if (!more) return more.error();
    if (!*more) return {};
  }
}

// Returns false if this was the last page.
result<bool> catch_up::fill_page(const peer_name& peer, const known_pool& pool, const unit_set& units,
                                 const store_protocol::copy_terms& terms, bool knows_requests, std::string& after) {
  store::find_options options;
  options.after = after;
  options.limit = kPageKeys;
  const auto page = engine_.find(pool.id, options);
  if (!page) return page.error();
  std::string list;
  for (const auto& key : page->keys) {
    if (!units[store_client::unit_of(pool.copies, key)]) continue;
    const auto info = engine_.stat(pool.id, key);
    if (info) store_protocol::append(list, store_protocol::key_entry{key, info->crc32c, info->version});
    ++compared;
  }
  const auto target = reach_now(links_, peer, pool.name);
  if (!target) return target.error();
  auto ask = target->connection->make_plain(store_protocol::opcode::sync_keys, target->pool,
                                            page->more ? page->last : std::string(), kPageTimeoutMs);
  ask->fields.prefix = to_bytes(units);
  ask->fields.after = after;
  if (knows_requests) ask->head.flags |= store_protocol::flag::knows_requests;
  ask->fields.copy = terms;
  ask->body = std::move(list);
  const auto answer = target->connection->run(ask);
  if (answer.status != 0) return failure{answer.status, answer.text};
  auto differing = store_protocol::decode_keys(answer.body);
  if (!differing) return differing.error();
  const bool again = !differing->empty() && differing->back().key.empty();
  if (again) differing->pop_back();
  if (const status done = push(peer, pool, *differing); !done) return done.error();
  if (again) return true;
  after = page->last;
  return page->more;
}

status catch_up::tell(const peer_name& peer, const unit_set& units, const store_protocol::copy_terms& terms,
                      std::string part) {
  if (stopping_) return failure{ESHUTDOWN, "the server is stopping"};
  const auto target = reach_now(links_, peer, {});
  if (!target) return target.error();
  auto tell = target->connection->make_plain(store_protocol::opcode::sync_requests, 0, {}, kPageTimeoutMs);
  tell->fields.prefix = to_bytes(units);
  tell->fields.copy = terms;
  tell->body = std::move(part);
  const auto answer = target->connection->run(tell);
  if (answer.status != 0) return failure{answer.status, answer.text};
  return {};
}

status catch_up::export_requests(const peer_name& peer, const unit_set& units, const store_protocol::copy_terms& terms) {
  const auto of_units = [&](std::uint16_t group) { return group != 0 && group <= units.size() && units[group - 1u]; };
  return engine_.export_requests(of_units, kRequestBytes,
                                 [&](std::string part) { return tell(peer, units, terms, std::move(part)); });
}

status catch_up::push(const peer_name& peer, const known_pool& pool, const std::vector<store_protocol::key_entry>& keys) {
  struct shared {
    std::mutex lock;
    std::condition_variable changed;
    int in_flight = 0;
    status outcome;
  };
  const auto all = std::make_shared<shared>();
  for (const auto& one : keys) {
    {
      std::unique_lock hold(all->lock);
      all->changed.wait(hold, [&] { return all->in_flight < kPushesInFlight; });
      if (!all->outcome || stopping_) break;
      ++all->in_flight;
    }
    change mutation;
    mutation.pool = pool.id;
    mutation.pool_name = pool.name;
    mutation.key = one.key;
    mutation.unit = store_client::unit_of(pool.copies, one.key);
    mutation.version = mutation.replaces = one.version;
    const std::string turn = lock_key_of(pool.id, one.key);
    serializer_.take(turn, [this, all, mutation, peer, turn] {
      copies_.send(mutation, peer, [this, all, turn](const status& outcome) {
        serializer_.leave(turn);
        ++pushed;
        const std::lock_guard hold(all->lock);
        if (!outcome) all->outcome = outcome;
        --all->in_flight;
        all->changed.notify_all();
      });
    });
  }
  std::unique_lock hold(all->lock);
  all->changed.wait(hold, [&] { return all->in_flight == 0; });
  return all->outcome;
}

result<std::string> keys_that_differ(store::engine& engine, const known_pool& pool, const unit_set& units,
                                     const std::string& after, std::string_view end, std::string_view theirs) {
  auto listed = store_protocol::decode_keys(theirs);
  if (!listed) return listed.error();
  std::map<std::string, store_protocol::key_entry> wanted;
  for (auto& one : *listed) wanted.emplace(one.key, one);
  std::string out;
  const auto add = [&](const std::string& key, std::uint64_t version) {
    if (out.size() < kMaxPageBytes) store_protocol::append(out, store_protocol::key_entry{key, 0, version});
  };
  store::find_options options;
  options.after = after;
  for (bool more = true; more && out.size() < kMaxPageBytes;) {
    const auto page = engine.find(pool.id, options);
    if (!page) return page.error();
    more = page->more;
    options.after = page->last;
    for (const auto& key : page->keys) {
      if (!end.empty() && key > end) {
        more = false;
        break;
      }
      if (!units[store_client::unit_of(pool.copies, key)]) continue;
      const auto mine = engine.stat(pool.id, key);
      if (!mine) continue;
      const auto found = wanted.find(key);
      const bool same =
          found != wanted.end() && found->second.version == mine->version && found->second.value_bytes == mine->crc32c;
      if (!same) add(key, mine->version);
      if (found != wanted.end()) wanted.erase(found);
    }
  }
  const bool cut = out.size() >= kMaxPageBytes;
  if (!cut)
    for (const auto& [key, one] : wanted) add(key, 0);
  if (cut || out.size() >= kMaxPageBytes) store_protocol::append(out, store_protocol::key_entry{{}, 0, 0});
  return out;
}

}  // namespace pl::store_cluster
