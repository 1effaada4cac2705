// SPDX-License-Identifier: Apache-2.0
#include "store/server/access.hpp"

#include <algorithm>
#include <cerrno>

#include "base/text.hpp"

namespace pl::store_server {
namespace {

// Removes the part before `separator` from the front of `rest` and returns it.
std::string_view take(std::string_view& rest, char separator) {
  const auto found = rest.find(separator);
  const auto out = rest.substr(0, found);
  rest = found == std::string_view::npos ? std::string_view() : rest.substr(found + 1);
  return out;
}

bool contains(const std::vector<std::string>& list, const std::string& principal) {
  return std::find(list.begin(), list.end(), principal) != list.end() ||
         std::find(list.begin(), list.end(), "*") != list.end();
}

// Splits at the last '=', because certificate names are URIs and may contain one.
std::pair<std::string_view, std::string_view> split(std::string_view entry) {
  const auto found = entry.rfind('=');
  if (found == std::string_view::npos) return {entry, {}};
  return {entry.substr(0, found), entry.substr(found + 1)};
}

}  // namespace

// Written as the server writes it for a client, or nobody would ever be it.
bool is_principal(std::string_view text) {
  constexpr std::string_view kUid = "uid:", kCertificate = "cert:", kName = "cn:";
  constexpr std::int64_t kMaxUid = 0xffff'fffe;  // the next number stands for no user
  if (text.starts_with(kUid)) {
    const auto digits = text.substr(kUid.size());
    const auto number = parse_integer(digits);
    return number && *number >= 0 && *number <= kMaxUid && digits == std::to_string(*number);
  }
  for (const std::string_view kind : {kCertificate, kName})
    if (text.starts_with(kind)) return text.size() > kind.size();
  return text == "*" || text == "tcp";
}

status check_access_list(std::string_view list) {
  // Answers carry the list together with other fields.
  constexpr std::size_t kMaxListBytes = 8192;
  if (list.size() > kMaxListBytes)
    return failure{EINVAL, format("an access list of %zu bytes: at most %zu", list.size(), kMaxListBytes)};
  while (!list.empty()) {
    const auto entry = take(list, ',');
    const auto [principal, permission] = split(entry);
    if (!is_principal(principal) || permission.find_first_not_of("rwa") != std::string_view::npos || permission.empty())
      return failure{
          EINVAL,
          format("access \"%.*s\" is not PRINCIPAL=RIGHTS with a principal of uid:N, cert:URI, cn:NAME, tcp or * and "
                 "rights of r, w, a",
                 static_cast<int>(entry.size()), entry.data())};
  }
  return {};
}

rights rights_in(std::string_view list, std::string_view principal) {
  rights out;
  while (!list.empty()) {
    const auto [name, permission] = split(take(list, ','));
    if (name != "*" && name != principal) continue;
    for (const char letter : permission) {
      out.read |= letter == 'r';
      out.write |= letter == 'w';
      out.admin |= letter == 'a';
    }
  }
  return out;
}

std::string tags_of(const store_protocol::pool_settings& settings, const store_protocol::cache_settings& cache) {
  std::string terms;
  if (settings.is_cache)
    terms = format("cache_memory=%llu;cache_disk=%llu;cache_ttl=%llu;cache_policy=%u;",
                   static_cast<unsigned long long>(cache.memory_bytes), static_cast<unsigned long long>(cache.disk_bytes),
                   static_cast<unsigned long long>(cache.ttl_ms), cache.policy);
  return format("shm=%d;cache=%d;%scopies=%u;access=", settings.allow_shm, settings.is_cache, terms.c_str(),
                std::max<unsigned>(settings.copies, 1)) +
         settings.access;
}

status complete(store_protocol::pool_settings& settings, const std::optional<store_protocol::cache_settings>& cache) {
  if (cache) settings.is_cache = true;
  if (!settings.is_cache) return {};
  if (cache && cache->policy > static_cast<std::uint8_t>(store::eviction::last))
    return failure{EINVAL, format("unknown eviction %u: use s3-fifo or lru", cache->policy)};
  if (cache && cache->ttl_ms > store::kMaxTtlMs)
    return failure{EINVAL, "a time to live is at most ten years; 0 means no limit"};
  constexpr std::uint64_t kMaxShareBytes = std::uint64_t{1} << 60;
  if (cache && (cache->memory_bytes > kMaxShareBytes || cache->disk_bytes > kMaxShareBytes))
    return failure{EINVAL, "a cache's shares are at most 1 EiB; 0 leaves them to the server"};
  if (settings.copies > 1)
    return failure{EINVAL, "a cache has one copy of each value: its servers evict without asking each other"};
  if (settings.level == store::durability::pool_default) settings.level = store::durability::volatile_;
  if (settings.level != store::durability::volatile_)
    return failure{EINVAL, "a cache may drop values at any time, so its durability is always volatile: leave it out"};
  return {};
}

std::optional<store::cache_terms> cache_terms_of(const store::pool_info& pool) {
  const pool_policy policy = policy_of(pool);
  if (!policy.is_cache || policy.level != store::durability::volatile_) return std::nullopt;
  store::cache_terms out;
  out.memory_bytes = policy.cache.memory_bytes;
  out.disk_bytes = policy.cache.disk_bytes;
  out.ttl_ms = policy.cache.ttl_ms;
  if (policy.cache.policy <= static_cast<std::uint8_t>(store::eviction::last))
    out.policy = static_cast<store::eviction>(policy.cache.policy);
  return out;
}

std::optional<store_protocol::cache_settings> cache_settings_of(const store::pool_info& pool) {
  const auto terms = cache_terms_of(pool);
  if (!terms) return std::nullopt;
  return store_protocol::cache_settings{terms->memory_bytes, terms->disk_bytes, terms->ttl_ms,
                                        static_cast<std::uint8_t>(terms->policy)};
}

pool_policy policy_of(const store::pool_info& pool) {
  pool_policy out;
  out.id = pool.id;
  out.name = pool.name;
  out.level = pool.options.level;
  std::string_view rest = pool.options.tags;
  while (!rest.empty()) {
    if (rest.starts_with("access=")) {
      out.access = rest.substr(7);
      break;
    }
    const auto one = take(rest, ';');
    if (one == "shm=0") out.allow_shm = false;
    if (one == "cache=1") out.is_cache = true;
    const auto number = [&](std::string_view name) -> std::optional<std::uint64_t> {
      if (!one.starts_with(name)) return std::nullopt;
      return static_cast<std::uint64_t>(parse_integer(one.substr(name.size())).value_or(0));
    };
    if (const auto memory = number("cache_memory=")) out.cache.memory_bytes = *memory;
    if (const auto disk = number("cache_disk=")) out.cache.disk_bytes = *disk;
    if (const auto ttl = number("cache_ttl=")) out.cache.ttl_ms = *ttl;
    if (const auto policy = number("cache_policy=")) out.cache.policy = static_cast<std::uint8_t>(*policy);
    if (one.starts_with("copies=")) out.copies = static_cast<unsigned>(parse_integer(one.substr(7)).value_or(1));
  }
  return out;
}

store::pool_options options_of(const store_protocol::pool_settings& settings, const store_protocol::cache_settings& cache) {
  store::pool_options out;
  if (settings.level != store_protocol::durability::pool_default) out.level = settings.level;
  out.quota_bytes = settings.size_bytes;
  out.quota_keys = settings.max_keys;
  out.tags = tags_of(settings, cache);
  return out;
}

store_protocol::pool_settings settings_of(const store::pool_info& pool) {
  const pool_policy policy = policy_of(pool);
  store_protocol::pool_settings out;
  out.size_bytes = pool.options.quota_bytes;
  out.max_keys = pool.options.quota_keys;
  out.level = pool.options.level;
  out.is_cache = policy.is_cache;
  out.allow_shm = policy.allow_shm;
  out.copies = static_cast<std::uint8_t>(policy.copies);
  out.access = policy.access;
  return out;
}

bool access_rules::is_admin(const peer& remote) const { return contains(lists_.admins, remote.principal); }

access_rules::mapping access_rules::mapping_of(const peer& remote) const {
  if (remote.way != store_protocol::path::unix_socket || remote.pid <= 0) return mapping::none;
  if (contains(lists_.mappers, remote.principal)) return mapping::write;
  return contains(lists_.readers, remote.principal) ? mapping::read : mapping::none;
}

bool access_rules::needs_private_arena(const pool_policy& pool) const {
  if (!pool.allow_shm) return true;
  const auto may = [&](const std::string& principal) {
    if (contains(lists_.admins, principal)) return rights{true, true, true};
    return pool.access.empty() ? rights{true, true, false} : rights_in(pool.access, principal);
  };
  for (const auto& principal : lists_.mappers)
    if (const rights granted = may(principal); !granted.read || !granted.write) return true;
  return std::any_of(lists_.readers.begin(), lists_.readers.end(), [&](const auto& one) { return !may(one).read; });
}

rights access_rules::rights_of(const peer& remote, const pool_policy& pool) const {
  if (is_admin(remote)) return {true, true, true};
  if (pool.access.empty()) return {true, true, false};
  return rights_in(pool.access, remote.principal);
}

}  // namespace pl::store_server
