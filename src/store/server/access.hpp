// SPDX-License-Identifier: Apache-2.0
// Access rights: lists of principals, for the server and for each pool.
//
// A principal is "uid:1000" (unix socket, as the kernel reports it), "cert:URI" or, if a TLS client's certificate has
// no URI, "cn:NAME" (its common name), or "tcp" (plain TCP, which proves nothing). A pool's list is
// "PRINCIPAL=RIGHTS,..." with the rights r (get, find), w (put, erase) and a (settings, delete); "*" is everybody. With
// an empty list, everybody who can connect may read and write.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/engine/engine.hpp"
#include "store/server/transport.hpp"

namespace pl::store_server {

struct rights {
  bool read = false, write = false, admin = false;
};

// Whether the text names a principal, or everybody.
bool is_principal(std::string_view text);
// EINVAL: the list is not of the form above.
status check_access_list(std::string_view list);
// Precondition: the list has been checked.
rights rights_in(std::string_view list, std::string_view principal);

// The server's own settings of a pool, stored as text in pool_options::tags.
struct pool_policy {
  store::pool_id id = 0;
  std::string name, access;
  bool allow_shm = true, is_cache = false;
  unsigned copies = 1;
  store::durability level = store::durability::durable;
  store_protocol::cache_settings cache;  // if is_cache
};
std::string tags_of(const store_protocol::pool_settings& settings, const store_protocol::cache_settings& cache);
// The engine's terms of a pool that is a cache. A pool that is marked as a cache but not volatile (created by an
// earlier release) is not one.
std::optional<store::cache_terms> cache_terms_of(const store::pool_info& pool);
std::optional<store_protocol::cache_settings> cache_settings_of(const store::pool_info& pool);
// Fills in what the settings leave open: a cache without a durability is volatile. EINVAL if they contradict each
// other.
status complete(store_protocol::pool_settings& settings, const std::optional<store_protocol::cache_settings>& cache);
pool_policy policy_of(const store::pool_info& pool);
store::pool_options options_of(const store_protocol::pool_settings& settings,
                               const store_protocol::cache_settings& cache = {});
store_protocol::pool_settings settings_of(const store::pool_info& pool);

// Server-wide lists. Immutable, so usable from any thread.
class access_rules {
 public:
  struct lists {
    std::vector<std::string> admins;   // may create pools and do everything with every pool
    std::vector<std::string> mappers;  // may map the arena: they can read and write everything in it
    std::vector<std::string> readers;  // may map it for reading
  };
  explicit access_rules(lists given) : lists_(std::move(given)) {}
  bool is_admin(const peer& remote) const;
  // Mapping gives access to the bytes of all pools that are not kept apart.
  enum class mapping : std::uint8_t { none, read, write };
  mapping mapping_of(const peer& remote) const;
  // Whether the pool's values must stay out of the mapped memory: its settings say so, or somebody who may map that
  // memory lacks the rights to everything that the mapping shows.
  bool needs_private_arena(const pool_policy& pool) const;
  rights rights_of(const peer& remote, const pool_policy& pool) const;

 private:
  lists lists_;
};

}  // namespace pl::store_server
