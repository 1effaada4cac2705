// SPDX-License-Identifier: Apache-2.0
// A client of etcd's HTTP/JSON gateway (v3): keys, transactions and leases, as far as a cluster of stores needs them.
//
// A call blocks for at most the timeout at each address, and tries the next one if one does not answer. Connections
// stay open (http_client.hpp). An https:// address requires TLS 1.2 or later: the certificate must be signed by the
// authority and name the host. After ETIMEDOUT, ECONNREFUSED and the like the outcome is unknown: a transaction may
// have happened. Thread-safe.
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
  std::string certificate, key;  // of this client, both or none: needed if etcd requires them (--client-cert-auth)
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
    std::int64_t revision = 0;  // of the whole store at the moment of the snapshot
  };
  // A transaction happens only if all of these hold.
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

  // Takes any number of "http://host:port" or "https://host:port". EINVAL: another scheme, no port, https without an
  // authority, or an unusable file. The files are read once, here.
  static result<etcd> connect(const std::vector<std::string>& urls, std::chrono::milliseconds timeout,
                              const etcd_tls& tls = {});

  // Keys with this prefix, in order. `without_values`: keys and revisions only.
  result<snapshot> list(const std::string& prefix, bool without_values = false) const;
  // Returns false if a comparison did not hold.
  result<bool> transact(const std::vector<compare>& conditions, const std::vector<change>& writes) const;
  // Grants a lease of at least this duration (etcd has a minimum).
  result<std::int64_t> grant(unsigned seconds) const;
  // The lease's new remaining seconds; 0 if it is over.
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
// EPROTO if it is not base64.
result<std::string> from_base64(std::string_view text);
// The least key greater than all that start with `prefix`.
std::string end_of_prefix(std::string prefix);

}  // namespace pl::store_cluster
