// SPDX-License-Identifier: Apache-2.0
// A client of a cluster of stores: sends each operation to the server that has the key.
//
// The router fetches the slot map from any server that answers, and again when a server redirects an operation or does
// not answer. It then retries the operation with the new map until its deadline. A put or erase carries one sequence
// number through all attempts, so it is applied once. Servers on this host are reached by unix socket, with mapped
// memory, as by client; the others by TCP.
//
// Thread-safe. put(), get() and the like drive the connection that they wait for. Operations of start() progress by
// themselves: the clients' threads handle the answers, and the router's own threads (kWorkers, started when first
// needed) do what blocks: connecting, fetching the map, pausing before the next attempt.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "store/client/client.hpp"
#include "store/client/routed.hpp"
#include "store/client/slot_map.hpp"

namespace pl::store_client {

struct router_options {
  std::vector<std::string> servers;  // "host:port" of some of them
  address security;                  // certificates, if the servers require TLS
  unsigned timeout_ms = 30'000;      // of an operation, including all attempts
  unsigned try_ms = 2'000;           // for an answer, plus more for long values; then another server is asked
  copy::planner* copies = nullptr;   // as in client_options
  const cu::driver_table* cuda = nullptr;
  bool use_shm = true;  // for servers on this host. With certificates, they are reached by TLS nevertheless.
  store_protocol::path require = store_protocol::path::none;  // as in client_options
};

class router {
 public:
  // ENOTSUP if the servers are not in a cluster.
  static result<std::unique_ptr<router>> open(const router_options& options);
  // shut_down(). Not by a thread that calls a function of call_at_end().
  ~router();
  router(const router&) = delete;
  router& operator=(const router&) = delete;

  // Pool numbers are the router's own, and valid on this object only.
  result<std::uint32_t> open_pool(const std::string& name);
  result<std::uint32_t> create_pool(const std::string& name, const store_protocol::pool_settings& settings,
                                    const std::optional<store_protocol::cache_settings>& cache = std::nullopt);
  reply put(std::uint32_t pool, std::string_view key, const memory& source, const put_request& options = {});
  reply get(std::uint32_t pool, std::string_view key, const memory& destination, const get_request& options = {});
  reply erase(std::uint32_t pool, std::string_view key, const put_request& options = {});
  reply stat(std::uint32_t pool, std::string_view key);
  // Puts, gets, erases or queries many keys (opcode::batch_put and the like): as client::run_batch, on all servers that
  // have some of them, in parallel. The answers are in the order of the entries, each with its own status. If a server
  // is gone, its keys are retried like those of put(); the others are not affected. Precondition: no entry goes alone
  // (batch_entry::alone).
  std::vector<reply> run_batch(store_protocol::opcode op, std::uint32_t pool, std::span<const batch_entry> entries,
                               int timeout_ms = -1);
  // One page of all servers' keys, in order; reply::more and fields.after are as from one server. The page has the keys of
  // all slots, also while slots move: what a server does not answer, or no longer has, is asked of another one.
  reply find(std::uint32_t pool, const key_search& search);
  // As client::erase_prefix, for all slots. The number may lack keys whose server did not answer.
  reply erase_prefix(std::uint32_t pool, std::string_view prefix);
  // For all slots.
  reply sync(std::uint32_t pool);
  // A request that any server can answer.
  reply ask_anyone(store_protocol::opcode op, std::string_view key, const store_protocol::tail& fields = {});

  // ---- Asynchronous operations
  routed_ptr make_put(std::uint32_t pool, std::string_view key, const memory& source, const put_request& options = {}) const;
  routed_ptr make_get(std::uint32_t pool, std::string_view key, const memory& destination,
                      const get_request& options = {}) const;
  routed_ptr make_erase(std::uint32_t pool, std::string_view key, const put_request& options = {}) const;
  // Operations for the same server share system calls.
  void start(std::span<const routed_ptr> list);
  bool test(const routed_ptr& one) const;
  // Returns false if `deadline` has passed; the operation continues.
  bool wait(const routed_ptr& one, clock::time_point deadline = clock::time_point::max());

  // As client::call_at_end, but never fails.
  void call_at_end(const routed_ptr& one, std::function<void(const reply&)> function);

  // As client::shut_down.
  void shut_down();

  // As client::classify.
  result<memory> classify(std::uint64_t address, std::uint64_t bytes) const;
  cluster_map map() const { return *current_map(); }
  // Number of attempts beyond the first ones.
  std::uint64_t retries() const noexcept { return retries_.load(); }

 private:
  using maker = routed_operation::maker;
  using client_ptr = std::shared_ptr<client>;
  static constexpr unsigned kWorkers = 2;
  struct pool_here {
    std::string name;
    unsigned copies = 1;
  };
  struct server_link {
    client_ptr link;
    std::map<std::uint32_t, std::uint32_t> pools;  // the router's number to the server's
    std::uint64_t local_of = 0;                    // instance of the server for which its unix socket was tried
  };
  // How a server on this host may be reached.
  struct local_endpoint {
    std::string socket;
    std::uint64_t instance = 0;  // 0: there is none
  };
  // An operation to be sent (again), or a client to be closed, at `due`.
  struct retry_task {
    clock::time_point due;
    routed_ptr operation;
    reply last;  // of the previous attempt, if `endpoint` is not empty
    std::string endpoint;
    std::weak_ptr<client> connection;
  };

  explicit router(const router_options& options);
  reply routed(std::uint32_t pool, std::string_view key, std::uint64_t bytes, bool changes, int timeout_ms,
               const maker& make);
  reply attempt(const std::string& endpoint, std::uint32_t pool, clock::time_point deadline, const maker& make);
  // Limit of one attempt to connect.
  unsigned connect_ms(clock::time_point end) const;
  result<client_ptr> reach(const std::string& endpoint, clock::time_point end);
  local_endpoint local_endpoint_of(const std::string& endpoint) const;
  result<client_ptr> connect_to(const std::string& endpoint, const local_endpoint& local, clock::time_point end);
  result<std::uint32_t> pool_at(const std::string& endpoint, const client_ptr& connection, std::uint32_t pool,
                                clock::time_point end);
  void forget(const std::string& endpoint, const client_ptr& connection);
  // Takes a newer map from the first server that has one, beginning with `first`.
  status refresh(const std::string& first, clock::time_point end);
  std::shared_ptr<const cluster_map> current_map() const;
  // Before another attempt with all servers. Returns as failure_of_wait().
  std::optional<reply> pause_for_newer_map(std::chrono::milliseconds pause, clock::time_point end);
  // Why the calling thread is not to make another attempt: the router is closed, or the wait was interrupted.
  std::optional<reply> failure_of_wait() const;
  std::vector<std::string> endpoints() const;
  std::uint64_t map_epoch() const;
  std::string endpoint_for(unsigned copies, std::string_view key) const;
  // Returns 0 if no such pool is open.
  unsigned copies_of(std::uint32_t pool) const;
  result<std::uint32_t> remember(const std::string& name, const reply& got);
  clock::time_point end_of(int timeout_ms) const;

  // router_lists.cpp
  using asker = std::function<reply(client&, std::uint32_t number, clock::time_point end)>;
  std::chrono::milliseconds page_time() const;
  reply for_all_units(std::uint32_t pool, const asker& ask, std::vector<reply>& replies);
  reply ask_server(const std::string& endpoint, std::uint32_t pool, clock::time_point end, const asker& ask);

  // router_batch.cpp
  struct batch_call;
  routed_ptr made_of(store_protocol::opcode op, std::uint32_t pool, const batch_entry& entry, clock::time_point end) const;
  std::vector<reply> run_singly(const batch_call& call);
  void run_parts(batch_call& call, const std::map<std::string, std::vector<std::size_t>>& parts);
  void run_part(batch_call& call, const std::string& endpoint, std::span<const std::size_t> items);
  bool ask_batch(batch_call& call, const client_ptr& connection, std::uint32_t pool, std::span<const std::size_t> items);

  // router_async.cpp
  routed_ptr made(std::uint32_t pool, std::string_view key, std::uint64_t bytes, bool changes, int timeout_ms,
                  maker make) const;
  // The connection to the key's server if it exists already, otherwise null.
  client_ptr known_connection(const routed_operation& one, std::string& endpoint, std::uint32_t& pool);
  operation_ptr operation_for(const routed_ptr& one, const client_ptr& connection, const std::string& endpoint,
                              std::uint32_t pool);
  void launch(const routed_ptr& one);
  void settle(const routed_ptr& one, const reply& got, const std::string& endpoint, const std::weak_ptr<client>& connection);
  void finish(const routed_ptr& one, reply got);
  void queue(retry_task task);
  status start_workers();
  void serve();
  void run(const retry_task& task);
  void close_later(client* gone);

  const router_options options_;
  const std::uint64_t id_;  // the same on all its connections, so that servers recognise repeated requests
  std::atomic<std::uint64_t> next_sequence_{1}, retries_{0};
  mutable std::mutex lock_;
  std::shared_ptr<const cluster_map> map_;
  std::map<std::string, server_link> connections_;
  std::vector<std::weak_ptr<client>> clients_;  // also those that are forgotten, but still used by a thread
  std::map<std::uint32_t, pool_here> pools_;

  mutable std::mutex tasks_lock_;  // never held together with lock_
  std::condition_variable tasks_changed_, ended_;
  std::multimap<clock::time_point, retry_task> tasks_;
  std::vector<client*> closing_clients_;  // a client's own thread may release it last, and cannot close it
  std::vector<std::thread> workers_;
  std::atomic<bool> closing_{false};  // once true, no connection is added
};

}  // namespace pl::store_client
