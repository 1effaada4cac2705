// SPDX-License-Identifier: Apache-2.0
// Connections to the other servers of a cluster. A thread per server connects on first use. A failed connection is
// dropped together with its pool numbers, because a server that returns may number its pools differently.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/client/client.hpp"

namespace pl::store_cluster {

// A server in one of its runs.
struct peer_name {
  std::string name, endpoint;
  std::uint64_t run = 0;
  auto operator<=>(const peer_name&) const = default;
};

// A connection and the pool's number on it.
struct peer_pool {
  std::shared_ptr<store_client::client> connection;
  std::uint32_t pool = 0;
};

class peer_links {
 public:
  // `security` has certificates for TLS, if the servers require it; its other fields are ignored.
  peer_links(store_client::address security, unsigned timeout_ms);
  ~peer_links() { stop(); }
  // Pending operations end with ECANCELED, later ones with ESHUTDOWN.
  void stop();
  peer_links(const peer_links&) = delete;
  peer_links& operator=(const peer_links&) = delete;

  using use = std::function<void(const result<peer_pool>&)>;
  // Calls `callback`, which must not block, with the connection: in this call if it exists, otherwise from the thread.
  // EAGAIN, in this call, if no thread can be started.
  void reach(const peer_name& peer, const std::string& pool, use callback);
  // Drops a failed connection; the next reach() makes another.
  void forget(const peer_name& peer);

 private:
  struct link {
    std::shared_ptr<store_client::client> connection;
    std::map<std::string, std::uint32_t> pools;
  };
  struct job {
    peer_name peer;
    std::string pool;
    use callback;
  };
  struct worker {
    std::deque<job> jobs;
    std::thread thread;
  };
  status start(worker& one, const std::string& name);
  void serve(const std::string& name);
  result<peer_pool> connect(const peer_name& peer, const std::string& pool);

  store_client::address security_;
  unsigned timeout_ms_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::map<peer_name, link> links_;
  std::map<std::string, worker> workers_;  // one per server, so that connecting to an absent one delays no other
  // Destroyed by another thread, because a client's destructor waits for its own thread.
  std::vector<std::shared_ptr<store_client::client>> forgotten_;
  bool stopping_ = false;
};

}  // namespace pl::store_cluster
