// SPDX-License-Identifier: Apache-2.0
// Connections to the other servers of a cluster. Made when they are first needed, by a thread of their own, and thrown away
// when something is wrong with them: a server that comes back may have other numbers for its pools.
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

// Who a server is, this time.
struct peer_name {
  std::string name, endpoint;
  std::uint64_t run = 0;
  auto operator<=>(const peer_name&) const = default;
};

// A connection, and the number that the pool has on it.
struct peer_pool {
  std::shared_ptr<store_client::client> to;
  std::uint32_t pool = 0;
};

class peer_links {
 public:
  // `security`: certificates for TLS, if the servers want it; the rest of it is not looked at.
  peer_links(store_client::address security, unsigned timeout_ms);
  ~peer_links() { stop(); }
  // Operations under way end with ECANCELED, later ones with ESHUTDOWN.
  void stop();
  peer_links(const peer_links&) = delete;
  peer_links& operator=(const peer_links&) = delete;

  using use = std::function<void(const result<peer_pool>&)>;
  // Calls `then` with the connection, in the call if there is one, else from the thread. It must not block.
  void reach(const peer_name& who, const std::string& pool, use then);
  // The connection is not what it should be; the next call makes another.
  void forget(const peer_name& who);

 private:
  struct link {
    std::shared_ptr<store_client::client> to;
    std::map<std::string, std::uint32_t> pools;
  };
  struct job {
    peer_name who;
    std::string pool;
    use then;
  };
  struct worker {
    std::deque<job> jobs;
    std::thread thread;
  };
  void serve(const std::string& name);
  result<peer_pool> connect(const peer_name& who, const std::string& pool);

  store_client::address security_;
  unsigned timeout_ms_;
  std::mutex lock_;
  std::condition_variable changed_;
  std::map<peer_name, link> links_;
  std::map<std::string, worker> workers_;  // one a server: connecting to one that is away holds up nobody else
  // Not let go of where they are used: a client waits for its own thread.
  std::vector<std::shared_ptr<store_client::client>> forgotten_;
  bool stopping_ = false;
};

}  // namespace pl::store_cluster
