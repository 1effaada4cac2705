// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/membership.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "os/blocked_signals.hpp"
#include "store/cluster/cluster_pools.hpp"

namespace pl::store_cluster {
namespace {

using namespace std::chrono_literals;
constexpr std::uint64_t kSecond = 1'000'000'000;

std::uint64_t random_run() {
  std::random_device random;
  // A positive 63-bit number, because some JSON readers only know signed ones
  return (std::uint64_t{random()} << 31 | random() >> 1) | 1;
}

std::chrono::milliseconds tick_of(const cluster_options& options) {
  return std::clamp<std::chrono::milliseconds>(std::chrono::seconds(options.lease_s) / 25, 40ms, 500ms);
}

std::string endpoint_in(const std::string& member) {
  const auto read = nlohmann::json::parse(member, nullptr, false);
  return read.is_object() ? read.value("endpoint", "") : std::string();
}

std::optional<std::uint64_t> id_in(const std::string& member) {
  const auto read = nlohmann::json::parse(member, nullptr, false);
  if (!read.is_object() || !read.contains("id") || !read["id"].is_number_unsigned()) return std::nullopt;
  return read["id"].get<std::uint64_t>();
}

}  // namespace

std::string cluster_prefix(const std::string& cluster) { return "/peerlane/" + cluster + "/"; }

result<cluster_view> read_view(const etcd& client, const std::string& cluster) {
  const std::string prefix = cluster_prefix(cluster), members = prefix + "member/", pools = prefix + "pool/";
  const auto read = client.list(prefix);
  if (!read) return read.error();
  cluster_view out;
  out.revision = read->revision;
  for (const auto& one : read->entries) {
    if (one.key == prefix + "map") {
      auto map = store_client::read_cluster_map(one.value);
      if (!map) return map.error();
      out.map = *std::move(map);
      out.map_revision = one.revision;
    } else if (one.key.starts_with(members)) {
      out.alive.insert(one.key.substr(members.size()));
      out.member_revisions[one.key.substr(members.size())] = one.revision;
      if (const auto known = id_in(one.value)) out.member_ids[one.key.substr(members.size())] = *known;
    } else if (one.key.starts_with(pools)) {
      out.pools[one.key.substr(pools.size())] = one.value;
    }
  }
  return out;
}

membership::membership(const cluster_options& options, etcd client, hooks callbacks)
    : options_(options), etcd_(std::move(client)), hooks_(std::move(callbacks)), view_(std::make_shared<cluster_view>()) {}

result<std::unique_ptr<membership>> membership::join(const cluster_options& options, hooks callbacks,
                                                     std::chrono::milliseconds limit) {
  // Short, so that a server without an answer renews in time at another of etcd's addresses.
  const auto timeout = std::clamp<std::chrono::milliseconds>(std::chrono::seconds(options.lease_s) / 4, 200ms, 2000ms);
  auto client = etcd::connect(options.etcd, timeout, options.tls);
  if (!client) return client.error();
  std::unique_ptr<membership> made(new membership(options, *std::move(client), std::move(callbacks)));
  if (!options.data.empty()) {
    const auto known = read_known_cluster(options.data);
    if (!known) return known.error();
    made->known_ = *known;
  }
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const status done = made->enter_anew();
    if (done) break;
    if (done.code() == EUCLEAN) return done.error();  // retrying does not help
    if (std::chrono::steady_clock::now() >= deadline) return done.error();
    std::this_thread::sleep_for(50ms);
  }
  if (const status seen = made->poll_once(); !seen) return seen.error();
  return made;
}

status membership::start() {
  auto started = try_start_thread("keeps this server in its cluster", [this] { serve(); });
  if (!started) return started.error();
  thread_ = *std::move(started);
  return {};
}

void membership::stop() {
  {
    const std::lock_guard hold(lock_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  lease_until_ns_ = 0;
  if (const auto lease = std::exchange(lease_, 0); lease != 0) (void)etcd_.revoke(lease);
}

view_ptr membership::view() const {
  const std::lock_guard hold(lock_);
  return view_;
}

std::uint64_t membership::lease_left_ns() const noexcept {
  const std::uint64_t now = monotonic_ns(), deadline = lease_until_ns_.load(std::memory_order_acquire);
  return deadline > now ? deadline - now : 0;
}
status membership::believes(const cluster_view& seen) const {
  const std::lock_guard hold(lock_);
  return fits(known_, !options_.pools.empty(), {seen.map.id, seen.map.epoch, seen.revision},
              known_cluster_file(options_.data));
}

// At most once a second, because the map changes often while slots move.
void membership::remember(const cluster_view& seen) {
  if (options_.data.empty()) return;
  const std::uint64_t now = monotonic_ns();
  known_cluster next{seen.map.id, seen.map.epoch, seen.revision};
  {
    const std::lock_guard hold(lock_);
    if (known_ && next.id == 0) next.id = known_->id;
    const bool is_other = !known_ || known_->id != next.id;
    if (!is_other && (next.revision <= known_->revision || now - remembered_ns_ < kSecond)) return;
  }
  remembered_ns_ = now;
  if (const status written = write_known_cluster(options_.data, next); !written) {
    hooks_.log("cluster_not_remembered", written.error().message);
    return;
  }
  const std::lock_guard hold(lock_);
  known_ = next;
}

std::uint64_t membership::known_id() const {
  const std::lock_guard hold(lock_);
  return known_ ? known_->id : 0;
}

// The number for a cluster whose map has none. A server of an earlier release drops it with each change, so there is
// none while the map has such a server: otherwise two servers could each create one and reject each other's maps. 0:
// there is none.
std::uint64_t membership::id_for(const cluster_view& now) const {
  const bool all_keep_it = std::all_of(now.map.servers.begin(), now.map.servers.end(), [&](const auto& one) {
    return one.first == options_.name || now.member_ids.contains(one.first);
  });
  if (!all_keep_it) return 0;
  if (const std::uint64_t known = known_id(); known != 0) return known;
  for (const auto& [name, id] : now.member_ids)
    if (id != 0) return id;
  return random_run();
}

bool membership::holds_lease() const noexcept { return lease_left_ns() > 0; }

void membership::wake() {
  {
    const std::lock_guard hold(lock_);
    woken_ = true;
  }
  changed_.notify_all();
}

status membership::refresh(std::chrono::milliseconds timeout) {
  std::unique_lock hold(lock_);
  woken_ = true;
  changed_.notify_all();
  const std::uint64_t wanted = checks_begun_ + 1;  // of a check that begins from now on
  if (!changed_.wait_for(hold, timeout, [&] { return checks_done_ >= wanted || stopping_; }) || stopping_)
    return failure{ETIMEDOUT, "etcd does not answer"};
  return {};
}

void membership::serve() {
  for (;;) {
    {
      std::unique_lock hold(lock_);
      changed_.wait_for(hold, tick_of(options_), [&] { return woken_ || stopping_; });
      if (stopping_) return;
      woken_ = false;
    }
    if (lease_ != 0) renew();
    if (lease_ == 0) {
      const status back = enter_anew();
      hooks_.log(back ? "cluster_joined_again" : "cluster_not_joined", back ? options_.name : back.error().message);
      if (back) ++rejoins_;
    }
    status refreshed = poll_once();
    const bool believes_etcd = refreshed.code() != EUCLEAN;
    if (!believes_etcd && believes_etcd_) hooks_.log("cluster_not_believed", refreshed.error().message);
    believes_etcd_ = believes_etcd;
    if (refreshed && lease_ != 0) refreshed = propose();
    hooks_.seen(view());
  }
}

void membership::renew() {
  const std::uint64_t asked = monotonic_ns();
  if (asked < renew_at_ns_) return;
  const auto left = etcd_.keep_alive(lease_);
  if (!left) {
    if (!holds_lease()) {
      hooks_.log("cluster_lease_out", left.error().message);
      lease_ = 0;  // the lease may still be valid in etcd, where it expires
    }
    return;
  }
  if (*left <= 0) {
    lease_until_ns_ = 0;
    lease_ = 0;
    return;
  }
  // A tenth of the lease covers clocks that run at different speeds.
  const auto seconds = static_cast<std::uint64_t>(*left);
  if (holds_lease()) lease_until_ns_.store(asked + seconds * kSecond / 10 * 9, std::memory_order_release);
  else lease_ = 0;  // it expired here: this server answered nothing meanwhile
  renew_at_ns_ = asked + seconds * kSecond / 5;
}

// A server that starts, or whose lease expired, joins as a new run, because the others saw it as dead.
status membership::enter_anew() {
  lease_until_ns_ = 0;
  if (!hooks_.idle()) return failure{EAGAIN, "changes from before the lease was lost are still in progress"};
  auto now = read_view(etcd_, options_.cluster);
  if (!now) return now.error();
  if (const status same = believes(*now); !same) return same;
  const std::string member = prefix() + "member/" + options_.name;
  const auto mine = now->member_revisions.find(options_.name);
  if (mine != now->member_revisions.end()) {
    const auto listed = etcd_.list(member);
    if (!listed) return listed.error();
    for (const auto& one : listed->entries)
      if (one.key == member && endpoint_in(one.value) != options_.endpoint)
        return failure{EEXIST, format("cluster %s has a server %s at %s: choose another --name", options_.cluster.c_str(),
                                      options_.name.c_str(), endpoint_in(one.value).c_str())};
  }
  const std::uint64_t asked = monotonic_ns(), run = random_run();
  const auto lease = etcd_.grant(options_.lease_s);
  if (!lease) return lease.error();
  cluster_map next = now->map;
  if (next.id == 0) next.id = id_for(*now);
  now->alive.erase(options_.name);
  now->member_revisions.erase(options_.name);
  forget_dead(next, now->alive);
  const bool other_folder = enter_with_folder(*now, next, run);
  const nlohmann::json about = {{"endpoint", options_.endpoint}, {"run", run}, {"id", known_id()}};
  const cluster_map written = next;
  const auto done = write_map(*now, std::move(next), {}, {{member, about.dump(), *lease, false}});
  if (!done) return done.error();
  if (!*done) return failure{EAGAIN, "the slot map was changed by another server at the same time"};
  if (other_folder) report_waiting(now->map.servers.at(options_.name).folder, written);
  lease_ = *lease;
  run_ = run;
  lease_until_ns_.store(asked + options_.lease_s * kSecond / 10 * 9, std::memory_order_release);
  renew_at_ns_ = asked + options_.lease_s * kSecond / 5;
  return {};
}

// Returns true if its data folder is not the one in the map.
bool membership::enter_with_folder(const cluster_view& view, cluster_map& next, std::uint64_t run) const {
  data_folder mine{options_.folder, false};
  copies_in_use used{};
  for (const auto& [name, text] : view.pools) {
    const auto pool = read_pool(text);
    if (!pool) continue;
    used[copies_of(*pool)] = true;
    if (options_.pools.contains(identity_of(*pool))) mine.has_its_pools = true;
  }
  const auto known = view.map.servers.find(options_.name);
  const bool was_there = known != view.map.servers.end();
  enter(next, options_.name, options_.endpoint, run, mine, used);
  publish_self(next.servers[options_.name]);
  if (!was_there || known->second.folder == options_.folder) return false;
  return !known->second.folder.empty() || left_behind(next, options_.name) > 0;
}

void membership::publish_self(cluster_server& self) const {
  self.folder = options_.folder;
  self.socket = options_.socket;
  self.instance = options_.instance;
}

void membership::report_waiting(const std::string& before, const cluster_map& now) const {
  const unsigned units = left_behind(now, options_.name);
  std::string text = format(
      "%s comes with data folder %s, the cluster knew it with %s: it is complete nowhere and is filled from other copies",
      options_.name.c_str(), options_.folder.c_str(), before.empty() ? kFolderUnknown : before.c_str());
  if (units > 0)
    text += format(
        "; of %u units complete copies are only in that folder or on servers that are away: start those, or put the "
        "disk back, or give up what only it had: peerlane store cluster accept-loss %s",
        units, options_.name.c_str());
  hooks_.log("cluster_other_folder", text);
}

status membership::poll_once() {
  {
    const std::lock_guard hold(lock_);
    ++checks_begun_;
  }
  const auto keys = etcd_.list(prefix(), true);
  if (!keys) return keys.error();
  const view_ptr known = view();
  std::int64_t newest = 0;
  for (const auto& one : keys->entries) newest = std::max(newest, one.revision);
  std::size_t count = known->alive.size() + known->pools.size() + (known->map_revision != 0 ? 1 : 0);
  view_ptr now = known;
  if (newest > known->revision || keys->entries.size() != count) {
    auto read = read_view(etcd_, options_.cluster);
    if (!read) return read.error();
    if (const status same = believes(*read); !same) return same;
    now = std::make_shared<cluster_view>(*std::move(read));
  }
  remember(*now);
  {
    const std::lock_guard hold(lock_);
    view_ = now;
    checks_done_ = checks_begun_;
  }
  changed_.notify_all();
  return {};
}

void membership::mark_down(const cluster_view& view, cluster_map& next, bool& changed) {
  const std::uint64_t now = monotonic_ns();
  for (auto& [name, one] : next.servers) {
    if (view.alive.contains(name) || one.down) {
      dead_since_ns_.erase(name);
      continue;
    }
    const auto [dead_since, first] = dead_since_ns_.emplace(name, now);
    if (now - dead_since->second < options_.repair_after_s * kSecond) continue;
    one.down = true;
    changed = true;
    hooks_.log("cluster_server_down", name);
  }
}

status membership::propose() {
  // Another server may write first several times.
  for (int attempt = 0; attempt < 8; ++attempt) {
    const view_ptr now = view();
    if (!now->alive.contains(options_.name)) return {};
    cluster_map next = now->map;
    bool changed = forget_dead(next, now->alive);
    if (next.id == 0 && (next.id = id_for(*now)) != 0) changed = true;
    if (*now->alive.begin() == options_.name) {  // one server is enough for this
      mark_down(*now, next, changed);
      changed = place(next, now->alive) || changed;
      changed = retire(next) || changed;
    }
    auto& self = next.servers[options_.name];
    if (self.run == run_ && self.folder.empty()) {  // a server of a release without identities
      publish_self(self);
      changed = true;
    }
    changed = hooks_.propose_changes(*now, next) || changed;
    if (!changed) return {};
    const auto mine = now->member_revisions.find(options_.name);
    const auto done = write_map(*now, std::move(next), {{prefix() + "member/" + options_.name, mine->second}}, {});
    if (!done) return done.error();
    if (const status refreshed = poll_once(); !refreshed) return refreshed;
    if (*done) hooks_.seen(view());
  }
  return {};
}

// Writes the map as the next epoch if nothing that it is based on has changed. Returns false if something has.
result<bool> membership::write_map(const cluster_view& current, cluster_map next, std::vector<etcd::compare> conditions,
                                   std::vector<etcd::change> changes) {
  ++next.epoch;
  conditions.push_back({prefix() + "map", current.map_revision});
  for (const auto& [name, one] : current.map.servers)  // dead servers stay dead
    if (!current.alive.contains(name) && name != options_.name) conditions.push_back({prefix() + "member/" + name, 0});
  changes.push_back({prefix() + "map", to_text(next), 0, false});
  return etcd_.transact(conditions, changes);
}

}  // namespace pl::store_cluster
