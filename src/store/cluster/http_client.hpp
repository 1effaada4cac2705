// SPDX-License-Identifier: Apache-2.0
// Sends requests to one HTTP/1.1 server over connections that stay open, so that most requests need no round trip to
// connect and no TLS handshake. A new connection resumes the TLS session of the previous one.
//
// If a kept connection ends before a byte of the answer, the request is repeated once on a new one, because servers
// close idle connections. Thread-safe: each call has a connection of its own, and at most kMaxIdle are kept.
#pragma once

#include <asio/ssl/context.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace pl::store_cluster {

struct http_address {
  std::string host, port;
  bool is_secure = false;
};

class http_client {
 public:
  static constexpr std::size_t kMaxIdle = 4;

  // `tls` is for a secure address; nobody may change it afterwards.
  http_client(http_address address, std::shared_ptr<asio::ssl::context> tls);
  ~http_client();
  http_client(const http_client&) = delete;
  http_client& operator=(const http_client&) = delete;

  // The body of the answer "200". EIO: another answer, in the server's words. ETIMEDOUT: none within `limit`. EPROTO:
  // not HTTP, or the server did not prove its identity.
  result<std::string> post(const std::string& path, const std::string& body, std::chrono::milliseconds limit);

 private:
  class connection;
  struct tls_session;

  std::unique_ptr<connection> take_idle();
  void keep(std::unique_ptr<connection> one);

  const http_address address_;
  const std::shared_ptr<asio::ssl::context> tls_;
  std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<connection>> idle_;
  std::unique_ptr<tls_session> session_;  // of the last secure connection
};

}  // namespace pl::store_cluster
