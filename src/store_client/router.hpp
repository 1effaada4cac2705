// SPDX-License-Identifier: Apache-2.0
// A client of a cluster of stores: sends each operation to the server that has the key.
//
// It learns the slot map from whatever server answers and keeps it until a server says that the key is another's, or does
// not answer. Such an operation is tried again, with the new map, until its deadline; a put or erase carries one number
// through all its tries, so that it is applied once. Thread-safe; calls wait for their answer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "client.hpp"
#include "slot_map.hpp"

namespace pl::store_client {

struct router_options {
  std::vector<std::string> servers;  // "host:port" of some of them
  address security;                  // certificates, if they want TLS
  unsigned timeout_ms = 30'000;      // of an operation with all its tries
  unsigned try_ms = 2'000;           // for an answer, and more for long values; then another server is asked
  copy::planner* copies = nullptr;   // as in client_options
  const cu::driver_table* cuda = nullptr;
};

class router {
 public:
  // ENOTSUP: the servers are in no cluster.
  static result<std::unique_ptr<router>> open(const router_options& options);

  // Numbers of this router's.
  result<std::uint32_t> open_pool(const std::string& name);
  result<std::uint32_t> create_pool(const std::string& name, const store_wire::pool_settings& settings);
  reply put(std::uint32_t pool, std::string_view key, const memory& from, const put_request& how = {});
  reply get(std::uint32_t pool, std::string_view key, const memory& into, const get_request& how = {});
  reply erase(std::uint32_t pool, std::string_view key, const put_request& how = {});
  reply stat(std::uint32_t pool, std::string_view key);
  // One page of all servers' keys, in order; reply::more and fields.after as from one server. Keys that move to another
  // server between two pages may be missed or seen twice.
  reply find(std::uint32_t pool, const key_search& what);
  // On every server.
  reply sync(std::uint32_t pool);
  // Something that any server can answer.
  reply ask_anyone(store_wire::opcode op, std::string_view key, const store_wire::tail& fields = {});

  cluster_map map() const;
  // Tries after the first ones.
  std::uint64_t retries() const noexcept { return retries_.load(); }

 private:
  using maker = std::function<operation_ptr(client&, std::uint32_t pool)>;
  struct pool_here {
    std::string name;
    unsigned copies = 1;
  };
  struct connection {
    std::shared_ptr<client> to;
    std::map<std::uint32_t, std::uint32_t> pools;  // this router's number, the server's
  };

  explicit router(const router_options& options);
  reply routed(std::uint32_t pool, std::string_view key, std::uint64_t bytes, bool changes, int timeout_ms,
               const maker& make);
  reply attempt(const std::string& endpoint, std::uint32_t pool, clock::time_point until, const maker& make);
  result<std::shared_ptr<client>> reach(const std::string& endpoint);
  result<std::uint32_t> pool_at(const std::string& endpoint, const std::shared_ptr<client>& to, std::uint32_t pool);
  void forget(const std::string& endpoint, const std::shared_ptr<client>& to);
  // Takes a newer map from the first server that has one; `first` is asked first.
  status refresh(const std::string& first);
  std::vector<std::string> endpoints() const;
  // 0: no such pool is open.
  unsigned copies_of(std::uint32_t pool) const;
  result<std::uint32_t> remember(const std::string& name, const reply& got);

  const router_options options_;
  const std::uint64_t id_;  // of all its connections, for servers' memory of requests
  std::atomic<std::uint64_t> next_sequence_{1}, retries_{0};
  mutable std::mutex lock_;
  std::shared_ptr<const cluster_map> map_;
  std::map<std::string, connection> connections_;
  std::map<std::uint32_t, pool_here> pools_;
};

}  // namespace pl::store_client
