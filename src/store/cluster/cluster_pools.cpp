// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/cluster_pools.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/text.hpp"

namespace pl::store_cluster {
namespace {

using json = nlohmann::json;

// The pool's identity: a later pool of the same name has another number.
constexpr std::string_view kIdentity = "pool";

// A request that is repeated, at whichever server, gets the same number.
std::uint64_t identity_for(const store::request_key& request, std::string_view name) {
  if (request.empty()) {
    std::random_device random;
    return (std::uint64_t{random()} << 20 | random()) | 1;
  }
  std::uint64_t mixed = request.client;
  const auto mix = [&mixed](std::uint64_t word) {  // splitmix64
    mixed += word + 0x9e3779b97f4a7c15;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
  };
  mix(request.sequence);
  for (const char letter : name) mix(static_cast<unsigned char>(letter));
  return mixed >> 12 | 1;
}

// What etcd has of the pool; nothing: no pool.
result<std::optional<etcd::entry>> stored_pool(const membership& members, const std::string& key) {
  auto known = members.store().list(key);
  if (!known) return known.error();
  for (auto& one : known->entries)
    if (one.key == key) return std::optional(std::move(one));
  return std::optional<etcd::entry>();
}

std::string with_identity(std::string tags, std::uint64_t identity) {
  return format("%.*s=%llu;", static_cast<int>(kIdentity.size()), kIdentity.data(),
                static_cast<unsigned long long>(identity)) +
         tags;
}

}  // namespace

std::uint64_t number_in_tags(std::string_view tags, std::string_view name) {
  while (!tags.empty() && !tags.starts_with("access=")) {
    const auto end = std::min(tags.find(';'), tags.size());
    const std::string_view one = tags.substr(0, end);
    if (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '=')
      return static_cast<std::uint64_t>(parse_integer(one.substr(name.size() + 1)).value_or(0));
    tags.remove_prefix(std::min(end + 1, tags.size()));
  }
  return 0;
}

std::uint64_t identity_of(const store::pool_options& options) { return number_in_tags(options.tags, kIdentity); }
unsigned copies_of(const store::pool_options& options) {
  return static_cast<unsigned>(
      std::clamp<std::uint64_t>(number_in_tags(options.tags, "copies"), 1, store_client::kMaxCopies));
}

std::string to_text(const store::pool_options& options) {
  return json{{"level", static_cast<unsigned>(options.level)},
              {"quota_bytes", options.quota_bytes},
              {"quota_keys", options.quota_keys},
              {"verify_reads", options.verify_reads},
              {"tags", options.tags}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<store::pool_options> read_pool(std::string_view text) {
  const json read = json::parse(text, nullptr, false);
  if (!read.is_object()) return std::nullopt;
  const auto level = read.value("level", json()), tags = read.value("tags", json());
  const auto bytes = read.value("quota_bytes", json()), keys = read.value("quota_keys", json());
  const auto stored = level.is_number_unsigned() ? store::durability_from(level.get<std::uint64_t>()) : std::nullopt;
  if (!stored || !tags.is_string() || !bytes.is_number_unsigned() || !keys.is_number_unsigned()) return std::nullopt;
  store::pool_options out;
  out.level = *stored;
  out.quota_bytes = bytes.get<std::uint64_t>();
  out.quota_keys = keys.get<std::uint64_t>();
  out.verify_reads = read.value("verify_reads", json(false)) == json(true);
  out.tags = tags.get<std::string>();
  return out;
}

void cluster_pools::when_changed(std::function<void(const store::pool_info&)> changed) {
  const std::lock_guard one_at_a_time(following_);
  changed_ = std::move(changed);
}

// Deletes the pool unless etcd has this one. EAGAIN if it has: the caller's view is older.
status cluster_pools::delete_if_gone(const store::pool_info& mine, const membership& members) {
  const auto now = read_view(members.store(), members.options().cluster);
  if (!now) return now.error();
  if (const status same = members.believes(*now); !same) return same;
  const auto listed = now->pools.find(mine.name);
  const auto wanted = listed != now->pools.end() ? read_pool(listed->second) : std::nullopt;
  if (wanted && identity_of(*wanted) == identity_of(mine.options))
    return failure{EAGAIN, "pool " + mine.name + " is newer than this server's view of the cluster"};
  return engine_.delete_pool(mine.id);
}

status cluster_pools::follow(const cluster_view& now, const membership& members) {
  const std::lock_guard one_at_a_time(following_);
  status last;
  for (const auto& [name, text] : now.pools) {
    const auto wanted = read_pool(text);
    const status done = wanted ? follow_one(name, *wanted, members)
                               : status(failure{EPROTO, "etcd: the entry of pool " + name + " is not a pool"});
    if (!done) last = done;
  }
  for (const auto& pool : engine_.list_pools()) {
    if (identity_of(pool.options) == 0 || now.pools.contains(pool.name)) continue;
    if (const status done = delete_if_gone(pool, members); !done && done.code() != ENXIO) last = done;
  }
  return last;
}

status cluster_pools::follow_one(const std::string& name, const store::pool_options& wanted, const membership& members) {
  const auto have = engine_.find_pool(name);
  if (have) {
    if (to_text(have->options) == to_text(wanted)) return {};
    const auto theirs = identity_of(wanted), mine = identity_of(have->options);
    if (mine == 0)
      return failure{EEXIST,
                     "pool " + name + " of this server has the name of another pool of the cluster: it is not served"};
    if (mine == theirs) {
      const auto done = engine_.configure_pool(have->id, wanted);
      if (!done) return done.error();
      if (changed_) changed_(*done);
      return {};
    }
    if (const status done = delete_if_gone(*have, members); !done) return done;
  }
  const auto made = engine_.create_pool(name, wanted);
  if (!made && made.code() != EEXIST) return made.error();
  return {};
}

result<known_pool> cluster_pools::find(store::pool_id id) const {
  {
    const std::lock_guard hold(lock_);
    if (const auto found = known_.find(id); found != known_.end()) return *found->second;
  }
  const auto pool = engine_.pool(id);
  if (!pool) return pool.error();
  known_pool out{id, pool->name, 0};
  if (identity_of(pool->options) != 0) out.copies = copies_of(pool->options);
  const std::lock_guard hold(lock_);
  known_.emplace(id, std::make_shared<const known_pool>(out));
  return out;
}

std::vector<known_pool> cluster_pools::all() const {
  std::vector<known_pool> out;
  for (const auto& pool : engine_.list_pools())
    if (auto one = find(pool.id); one && one->copies > 0) out.push_back(*std::move(one));
  return out;
}

result<store::pool_info> cluster_pools::create(membership& members, const std::string& name,
                                               const store::pool_options& options, const store::request_key& request) {
  const std::uint64_t identity = identity_for(request, name);
  store::pool_options made = options;
  made.tags = with_identity(options.tags, identity);
  if (const auto own = engine_.find_pool(name); own && identity_of(own->options) == 0)
    return failure{EEXIST, "pool " + name + " of this server does not belong to the cluster: choose another name"};
  const std::string key = members.prefix() + "pool/" + name;
  const auto done = members.store().transact({{key, 0}}, {{key, to_text(made), 0, false}});
  if (!done) return done.error();
  if (!*done) {
    const auto known = stored_pool(members, key);
    if (!known) return known.error();
    const auto listed = *known ? read_pool((*known)->value) : std::nullopt;
    if (!listed || identity_of(*listed) != identity) return failure{EEXIST, "store: pool " + name + " exists"};
    made = *listed;  // the client's answer was lost, or etcd's
  }
  const std::lock_guard one_at_a_time(following_);
  if (const status mine = follow_one(name, made, members); !mine) return mine.error();
  return engine_.find_pool(name);
}

result<store::pool_info> cluster_pools::configure(membership& members, store::pool_id id,
                                                  const store::pool_options& options) {
  const auto now = engine_.pool(id);
  if (!now) return now.error();
  const auto identity = identity_of(now->options);
  if (identity == 0) return engine_.configure_pool(id, options);
  if (copies_of(options) != copies_of(now->options))
    return failure{ENOTSUP, "the number of copies of a pool cannot change: create another pool and copy the values"};
  store::pool_options made = options;
  made.tags = with_identity(options.tags, identity);
  const std::string key = members.prefix() + "pool/" + now->name;
  const auto known = stored_pool(members, key);
  if (!known) return known.error();
  if (!*known) return failure{ENXIO, "store: pool " + now->name + " was deleted"};
  const auto done = members.store().transact({{key, (*known)->revision}}, {{key, to_text(made), 0, false}});
  if (!done) return done.error();
  if (!*done) {
    const auto listed = stored_pool(members, key);
    if (!listed) return listed.error();
    if (!*listed || (*listed)->value != to_text(made))  // otherwise etcd's first answer was lost
      return failure{EAGAIN, "the pool was changed by another request at the same time"};
  }
  return engine_.configure_pool(id, made);
}

status cluster_pools::drop(membership& members, store::pool_id id) {
  const auto now = engine_.pool(id);
  if (!now) return now.error();
  if (identity_of(now->options) == 0) return engine_.delete_pool(id);
  const auto done = members.store().transact({}, {{members.prefix() + "pool/" + now->name, {}, 0, true}});
  if (!done) return done.error();
  const status deleted = engine_.delete_pool(id);
  // The cluster has no such pool any more. Here it goes when the transfers in progress have ended (follow).
  return deleted.code() == EBUSY ? status() : deleted;
}

}  // namespace pl::store_cluster
