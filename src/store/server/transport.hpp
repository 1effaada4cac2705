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
  long pid = 0;           // unix sockets only; 0: unknown, or of another pid namespace
  unsigned uid = 0;       // unix sockets only
  bool is_local = false;  // on this host: a unix socket, or the loopback interface
};

// A call transfers as much as the socket has room for. Asio's default is 64 KiB a call, each with a turn of the event
// loop.
inline constexpr auto kAllAtOnce = [](std::error_code error, std::size_t) -> std::size_t { return error ? 0 : 4 << 20; };

class transport {
 public:
  using done = std::function<void(std::error_code, std::size_t)>;
  virtual ~transport() = default;
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;

  // Does the TLS handshake, if any, and determines who the peer is.
  virtual void start(std::function<void(std::error_code)> ready) = 0;
  virtual void read_some(asio::mutable_buffer destination, done callback) = 0;
  // Writes all buffers; their memory must stay valid until `callback`.
  virtual void write(std::vector<asio::const_buffer> buffers, done callback) = 0;
  // Writes as many bytes as possible without a system call, which is none unless rings are in use. Only while no write
  // is in progress.
  virtual std::size_t write_now(std::string_view) { return 0; }
  // Sends `bytes` together with a descriptor. Only while no write is in progress. ENOTSUP if this transport cannot
  // carry descriptors.
  virtual status send_descriptor(std::string_view bytes, int fd);
  // For clients on the same host: from now on, reads and writes go through memory that both ends map (byte_ring.hpp).
  // The returned descriptor of that memory belongs to the transport. Only while no read or write is in progress.
  // ENOTSUP, ENOSPC: nothing changes.
  virtual bool may_ring() const noexcept { return false; }
  virtual result<int> open_rings();
  virtual void close() = 0;
  // Whether the other end has closed its side, determined without reading.
  virtual bool has_left() = 0;
  const peer& other() const noexcept { return peer_; }

 protected:
  transport() = default;
  peer peer_;
};

class ring_poller;
// `poller` belongs to the thread that runs the connection, and outlives it. Null: no rings.
std::unique_ptr<transport> make_transport(asio::local::stream_protocol::socket socket, ring_poller* poller);
std::unique_ptr<transport> make_transport(asio::ip::tcp::socket socket);
using tls_context = std::shared_ptr<asio::ssl::context>;
std::unique_ptr<transport> make_transport(asio::ip::tcp::socket socket, tls_context tls);

// PEM files: the server's certificate and key, and the authority whose clients are accepted.
struct tls_files {
  std::string certificate, key, client_authority;
};
// TLS 1.3 with a required client certificate, AES-128-GCM first. EINVAL with OpenSSL's reason. A server that is serving
// takes regular files only, because it would wait for a pipe's writer.
result<tls_context> make_tls_context(const tls_files& files, bool is_serving = false);

// Whether poll() reports that the socket's other end has closed.
bool has_left(int socket) noexcept;

}  // namespace pl::store_server
