// SPDX-License-Identifier: Apache-2.0
// One connection's bytes at the client's end: a unix socket, TCP, or TLS over TCP. Never blocks after it is open.
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
  std::string socket;    // path of its unix socket; wins if both are given
  std::string endpoint;  // "host:port"
  // TLS, all three or none: who the client is, and who vouches for the server.
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
  // Bytes taken; 0: none now. ECONNRESET and the like: it is over.
  virtual result<std::size_t> write(std::span<const iovec> buffers) = 0;
  // Bytes read; 0: none now. ECONNRESET at the end of the stream.
  virtual result<std::size_t> read(void* destination, std::size_t bytes) = 0;
  // A descriptor that came along with what was read, or -1. The caller owns it.
  virtual int take_descriptor() noexcept { return -1; }
  // Called before the caller sleeps in poll(): what to look for at fd(). None: there is something to do already. Taken back
  // by the next read().
  virtual std::optional<short> arm(bool to_write) { return static_cast<short>(POLLIN | (to_write ? POLLOUT : 0)); }
};

// Connects within `timeout_ms`. The error names address and cause.
result<std::unique_ptr<byte_channel>> connect(const address& target, unsigned timeout_ms);
// TLS over a connected socket, which it owns from now on. Handshakes within `timeout_ms`.
result<std::unique_ptr<byte_channel>> start_tls(int socket, const address& target, unsigned timeout_ms);

// The bytes of a connection through rings from now on: `rings` is the store's descriptor, which it closes. The socket stays
// for waking up and for the end. EPROTO, ENOMEM: the connection is of no use any more.
result<std::unique_ptr<byte_channel>> over_rings(std::unique_ptr<byte_channel> socket, int rings);

// Waits for POLLIN (and POLLOUT) at most so long. False: nothing happened.
bool wait_for(int fd, bool to_write, unsigned timeout_ms) noexcept;

// Whether a process listens on this unix socket; also one that is stopped. Does not wait.
bool is_listened_to(const std::string& path);

}  // namespace pl::store_client
