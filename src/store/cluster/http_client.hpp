// SPDX-License-Identifier: Apache-2.0
// Sends requests to one HTTP/1.1 server over connections that stay open, so that most requests pay no round trip to connect
// and no TLS handshake; a connection that must be made anew resumes the TLS session of the one before.
//
// A request on a kept connection that ended without a byte of an answer is sent once more on a new one: servers close idle
// connections. Any thread; each call has a connection of its own, at most kMaxIdle are kept.
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

  // `tls`: for a secure address, shared with nobody who changes it.
  http_client(http_address address, std::shared_ptr<asio::ssl::context> tls);
  ~http_client();
  http_client(const http_client&) = delete;
  http_client& operator=(const http_client&) = delete;

  // The body of the answer "200". EIO: another answer, in the server's words. ETIMEDOUT: none within `limit`. EPROTO: it is
  // not HTTP, or the server did not prove who it is.
  result<std::string> post(const std::string& path, const std::string& body, std::chrono::milliseconds limit);

 private:
  class connection;
  struct tls_session;

  std::unique_ptr<connection> take_idle();
  void keep(std::unique_ptr<connection> one);

  const http_address address_;
  const std::shared_ptr<asio::ssl::context> tls_;
  std::mutex mutex_;  // of what follows
  std::vector<std::unique_ptr<connection>> idle_;
  std::unique_ptr<tls_session> session_;  // of the last secure connection
};

}  // namespace pl::store_cluster
