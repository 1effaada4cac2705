// SPDX-License-Identifier: Apache-2.0
// The client's end of one connection: a unix socket, TCP, or TLS over TCP. Never blocks after it is open.
//
// Used by one thread at a time.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.hpp"
#include "store/protocol/wire.hpp"

namespace pl::store_client {

// Where a store is and how it is reached.
struct address {
  std::string socket;    // path of its unix socket; takes precedence over `endpoint`
  std::string endpoint;  // "host:port"
  // TLS, all three or none: the client's identity, and the authority for the server's certificate.
  std::string tls_certificate, tls_key, tls_authority;
};

class byte_channel {
 public:
  virtual ~byte_channel() = default;
  byte_channel() = default;
  byte_channel(const byte_channel&) = delete;
  byte_channel& operator=(const byte_channel&) = delete;

  virtual int fd() const noexcept = 0;
  virtual store_protocol::path way() const noexcept = 0;
  // Returns the number of bytes taken; 0 if none can be taken now. ECONNRESET and the like if the connection is over.
  virtual result<std::size_t> write(std::span<const iovec> buffers) = 0;
  // Returns the number of bytes read; 0 if there are none now. ECONNRESET at the end of the stream.
  virtual result<std::size_t> read(void* destination, std::size_t bytes) = 0;
  // A descriptor that arrived with the bytes read, or -1. The caller owns it.
  virtual int take_descriptor() noexcept { return -1; }
  // Whether a read() now may return something. Cheap enough to be asked again and again; true if only read() can tell.
  virtual bool may_have_bytes() const noexcept { return true; }
  // Called before the caller sleeps in poll(): the events to wait for at fd(), or nothing if there is work already. The
  // next read() undoes it.
  virtual std::optional<short> arm(bool to_write) { return static_cast<short>(POLLIN | (to_write ? POLLOUT : 0)); }
};

// Connects within `timeout_ms`. The error names address and cause.
result<std::unique_ptr<byte_channel>> connect(const address& target, unsigned timeout_ms);
// TLS over a connected socket, of which it takes ownership. Does the handshake within `timeout_ms`.
result<std::unique_ptr<byte_channel>> start_tls(int socket, const address& target, unsigned timeout_ms);

// Sends the connection's bytes through rings from now on. `rings` is the store's descriptor, which is closed here. The
// socket remains for wakeups and for detecting the end. EPROTO, ENOMEM: the connection is unusable.
result<std::unique_ptr<byte_channel>> over_rings(std::unique_ptr<byte_channel> socket, int rings);

// Waits at most this long for POLLIN (and POLLOUT). Returns false if nothing happened.
bool wait_for(int fd, bool to_write, unsigned timeout_ms) noexcept;

// Whether a process, possibly a stopped one, listens on this unix socket. Does not wait.
bool is_listened_to(const std::string& path);

}  // namespace pl::store_client
