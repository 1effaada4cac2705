// SPDX-License-Identifier: Apache-2.0
// Bytes between two processes of one host through memory that both map: a ring for each direction, in place of the socket
// over which they were agreed on. What has been written is seen without a system call; a sleeping end is woken through the
// socket.
//
// Neither end trusts the other. Each keeps its own positions private and checks the positions that the other publishes
// (EPROTO); what is read may change while it is read, so it is copied out once and only then looked at. One thread at a time
// uses an end.
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
  static constexpr std::size_t kRingBytes = 128 << 10;  // of each direction

  // The server's end, with memory that the client can neither shrink nor grow.
  static result<std::unique_ptr<byte_rings>> make();
  // The client's end, by the server's descriptor, which it closes. EPROTO: not such memory.
  static result<std::unique_ptr<byte_rings>> map(int fd);
  ~byte_rings();
  byte_rings(const byte_rings&) = delete;
  byte_rings& operator=(const byte_rings&) = delete;

  // What goes to the client; stays this object's. -1 at the client's end.
  int fd() const noexcept { return fd_; }

  // Bytes taken, 0: there is no room now. Release: whoever reads them sees what was stored before.
  result<std::size_t> write(std::span<const iovec> buffers);
  // Bytes read, 0: there are none now. Acquire.
  result<std::size_t> read(void* destination, std::size_t bytes);

  // Before sleep: asks the other end for a byte through the socket when there is something to read, or room to write. False:
  // there is already, and nothing was asked for.
  bool arm(bool to_read, bool to_write);
  // Takes that back. True: it had been asked for, so a byte may come, or have come.
  bool disarm();
  // True once when the other end sleeps and this end's last write or read is what it waits for: send it a byte.
  bool take_wakeup_request() noexcept;

 private:
  struct words;
  struct direction {
    words* shared = nullptr;
    std::byte* data = nullptr;
    std::uint64_t mine = 0;    // bytes that this end has written or read
    std::uint64_t theirs = 0;  // as the other end last said
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
  bool stored_past_cache_ = false;
};

}  // namespace pl::store_protocol
