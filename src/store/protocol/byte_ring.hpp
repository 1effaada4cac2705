// SPDX-License-Identifier: Apache-2.0
// Bytes between two processes of one host through memory that both map: a ring for each direction, replacing the socket
// over which they were negotiated. Written bytes are visible without a system call; a sleeping end is woken through the
// socket.
//
// Neither end trusts the other. Each keeps its own positions private and checks the positions that the other publishes
// (EPROTO). Bytes may change while they are read, so they are copied out once and only then examined. Each end is used
// by one thread at a time.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.hpp"

namespace pl::store_protocol {

class byte_rings {
 public:
  static constexpr std::size_t kRingBytes = 128 << 10;  // for each direction

  // The server's end, with memory that the client can neither shrink nor grow.
  static result<std::unique_ptr<byte_rings>> make();
  // The client's end. Takes the server's descriptor and closes it. EPROTO if it is not such memory.
  static result<std::unique_ptr<byte_rings>> map(int fd);
  ~byte_rings();
  byte_rings(const byte_rings&) = delete;
  byte_rings& operator=(const byte_rings&) = delete;

  // The descriptor for the client; this object owns it. -1 at the client's end.
  int fd() const noexcept { return fd_; }

  // Returns the number of bytes taken; 0 if there is no room now. Release: whoever reads them sees what was stored
  // before.
  result<std::size_t> write(std::span<const iovec> buffers);
  // Returns the number of bytes read; 0 if there are none now. Acquire.
  result<std::size_t> read(void* destination, std::size_t bytes);

  // Whether read() would return bytes or an error. Costs one load of a cache line that changes only with news.
  bool has_incoming() const noexcept;

  // Before sleeping: requests a byte through the socket when there is something to read, or room to write. Returns
  // false, and requests nothing, if there is already.
  bool arm(bool to_read, bool to_write);
  // Cancels the request. Returns true if there was one, so that a byte may arrive or have arrived.
  bool disarm();
  // Returns true once if the other end sleeps and waits for this end's last write or read: send it a byte then.
  bool take_wakeup_request() noexcept;

 private:
  struct words;
  struct direction {
    words* shared = nullptr;
    std::byte* data = nullptr;
    std::uint64_t mine = 0;    // bytes that this end has written or read
    std::uint64_t theirs = 0;  // as the other end last published
  };
  byte_rings(void* memory, int fd, bool is_server);
  void store(std::byte* target, const void* source, std::size_t bytes);
  std::size_t put(const void* source, std::size_t bytes);
  static failure nonsense();

  void* const memory_;
  const int fd_;
  direction outgoing_, incoming_;
  bool is_armed_ = false;
  bool wakeup_due_ = false;
  bool stored_non_temporal_ = false;
};

}  // namespace pl::store_protocol
