// SPDX-License-Identifier: Apache-2.0
// The byte stream of one connection: a unix socket, TCP, or TLS over TCP.
//
// Used by one thread, the one that runs the connection's io_context. At most one read and one write at a time.
#pragma once

#include <asio/buffer.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/ssl/context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "base/status.hpp"
#include "store/protocol/wire.hpp"

namespace pl::store_server {

// The other end of a connection.
struct peer {
  store_protocol::path way = store_protocol::path::tcp;
  std::string principal;  // "uid:1000", "cert:URI", "cn:NAME", "tcp"
  std::string origin;     // for the log: "pid 123", "127.0.0.1:40000"
  long pid = 0;           // unix sockets only; 0: not known, or of another pid namespace
  unsigned uid = 0;       // unix sockets only
  bool is_local = false;  // of this host: a unix socket, or the loopback interface
};

// A call takes what the socket has room for; Asio's own rule is 64 KiB a call, each with a turn of the event loop.
inline constexpr auto kAllAtOnce = [](std::error_code error, std::size_t) -> std::size_t { return error ? 0 : 4 << 20; };

class transport {
 public:
  using done = std::function<void(std::error_code, std::size_t)>;
  virtual ~transport() = default;
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;

  // Handshakes (TLS) and finds out who the peer is.
  virtual void start(std::function<void(std::error_code)> ready) = 0;
  virtual void read_some(asio::mutable_buffer destination, done callback) = 0;
  // Writes all buffers; their memory must stay valid until `callback`.
  virtual void write(std::vector<asio::const_buffer> buffers, done callback) = 0;
  // As many of the bytes as go without a system call: none, but through rings. Only while no write is under way.
  virtual std::size_t write_now(std::string_view) { return 0; }
  // `bytes` with a descriptor along. Only while no write is under way. ENOTSUP where descriptors do not travel.
  virtual status send_descriptor(std::string_view bytes, int fd);
  // Same host: what is read and written from now on goes through memory that both ends map (byte_ring.hpp), whose descriptor
  // this is; the transport's own. Not while a read or a write is under way. ENOTSUP, ENOSPC: everything stays as it was.
  virtual bool may_ring() const noexcept { return false; }
  virtual result<int> open_rings();
  virtual void close() = 0;
  // Whether the other end has closed its side, seen without reading.
  virtual bool has_left() = 0;
  const peer& other() const noexcept { return peer_; }

 protected:
  transport() = default;
  peer peer_;
};

class ring_poller;
// `poller` belongs to the thread that runs the connection, and outlives it; null: no rings.
std::unique_ptr<transport> make_transport(asio::local::stream_protocol::socket socket, ring_poller* poller);
std::unique_ptr<transport> make_transport(asio::ip::tcp::socket socket);
using tls_context = std::shared_ptr<asio::ssl::context>;
std::unique_ptr<transport> make_transport(asio::ip::tcp::socket socket, tls_context tls);

// Files of PEM: the server's certificate and key, and the authority whose clients are let in.
struct tls_files {
  std::string certificate, key, client_authority;
};
// TLS 1.3, a client certificate is required, AES-128-GCM first. EINVAL with OpenSSL's reason.
result<tls_context> make_tls_context(const tls_files& files);

// Whether poll() reports that the socket's other end has closed.
bool has_left(int socket) noexcept;

}  // namespace pl::store_server
