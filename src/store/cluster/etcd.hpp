// SPDX-License-Identifier: Apache-2.0
// A client of etcd's HTTP/JSON gateway (v3): keys, transactions and leases, as much as a cluster of stores needs.
//
// A call blocks for at most the timeout at each address, and tries the next one if one does not answer. Connections stay
// open (http_client.hpp). An https:// address is spoken to by TLS 1.2 or later: its certificate must be signed by the
// authority and name the host. ETIMEDOUT or ECONNREFUSED...: nothing is known of what was asked; a transaction may have
// happened. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace pl::store_cluster {

class http_client;

// Files for https:// addresses, PEM.
struct etcd_tls {
  std::string authority;         // that signed etcd's certificate
  std::string certificate, key;  // of this client, both or none: where etcd wants one (--client-cert-auth)
};

class etcd {
 public:
  struct entry {
    std::string key, value;
    std::int64_t revision = 0;  // of its last change
    std::int64_t lease = 0;     // 0: none
  };
  struct snapshot {
    std::vector<entry> entries;
    std::int64_t revision = 0;  // of the whole store: it was so at this moment
  };
  // A transaction happens if all of these hold.
  struct compare {
    std::string key;
    std::int64_t revision = 0;  // of its last change; 0: there is no such key
  };
  struct change {
    std::string key;
    std::string value;
    std::int64_t lease = 0;
    bool erase = false;
  };

  // "http://host:port" or "https://host:port", as many as there are. EINVAL: another scheme, or no port; https without an
  // authority, or a file that cannot be used. The files are read here, once.
  static result<etcd> connect(const std::vector<std::string>& urls, std::chrono::milliseconds timeout,
                              const etcd_tls& tls = {});

  // Keys that start so, in order. `without_values`: keys and revisions only.
  result<snapshot> list(const std::string& prefix, bool without_values = false) const;
  // False: a comparison did not hold.
  result<bool> transact(const std::vector<compare>& conditions, const std::vector<change>& writes) const;
  // A lease of at least so long (etcd has a shortest one).
  result<std::int64_t> grant(unsigned seconds) const;
  // Seconds that it has again; 0: it is over.
  result<std::int64_t> keep_alive(std::int64_t lease) const;
  status revoke(std::int64_t lease) const;

 private:
  etcd(std::vector<std::shared_ptr<http_client>> servers, std::chrono::milliseconds timeout)
      : servers_(std::move(servers)), timeout_(timeout) {}
  // The answer's JSON text.
  result<std::string> post(const std::string& path, const std::string& body) const;

  std::vector<std::shared_ptr<http_client>> servers_;  // one for each address
  std::chrono::milliseconds timeout_;
};

std::string to_base64(std::string_view bytes);
// EPROTO: not base64.
result<std::string> from_base64(std::string_view text);
// The key behind all that start with `prefix`.
std::string end_of_prefix(std::string prefix);

}  // namespace pl::store_cluster
