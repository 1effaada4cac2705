// SPDX-License-Identifier: Apache-2.0
// One UCX worker that moves large pieces of memory: active messages whose data travels by rendezvous, so that the receiver
// chooses the destination before any data moves.
//
//   send(head, memory) ─▶ ... ─▶ on_arrival(head): "there", or refused ─▶ data ─▶ on_received, on_sent
//
// With options::publish false no key to this process's memory ever leaves it: UCX writes one into its messages for
// contiguous data only, so there memory is always given as a list (of one). Such an end reads and writes the other's memory
// where both ends' transports can, and else the data passes through UCX's own messages.
//
// Used by one thread at a time. Nothing is called back but from progress().
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace pl::ucx {

class am_port {
 public:
  using peer_id = std::uint32_t;  // from 1 up

  class listener {
   public:
    // `bytes` of data wait at the other end. True: into this memory, all of it, which is on_received()'s when that is
    // called; `ticket` comes back there. False: refused, the sender's on_sent() tells. Must not call the port.
    virtual bool on_arrival(std::string_view head, std::size_t bytes, std::vector<iovec>& destination, void*& ticket) = 0;
    // Nothing touches the memory any more. `code`: errno value, 0: all of it is there.
    virtual void on_received(void* ticket, int code) = 0;
    virtual void on_sent(void* ticket, int code) = 0;
    // The peer is gone: what is under way ends with errors, what is sent later does too. It still is to be closed.
    virtual void on_lost(peer_id peer, const std::string& reason) = 0;

   protected:
    ~listener() = default;
  };

  struct options {
    std::string library;    // path of libucp.so.0; empty: by name
    bool rdma_only = true;  // no other transports; a user's UCX_TLS comes first
    bool publish = true;    // false: above
  };
  // ENOSYS: no UCX, or this was built without its headers. ENODEV: none of the wanted transports is there.
  static result<std::unique_ptr<am_port>> open(const options& wanted, listener& target);
  virtual ~am_port() = default;
  am_port(const am_port&) = delete;
  am_port& operator=(const am_port&) = delete;

  virtual const std::string& address() const noexcept = 0;  // what others connect() to
  virtual unsigned version_major() const noexcept = 0;
  virtual unsigned version_minor() const noexcept = 0;
  // What UCX found here: "rc_verbs/mlx5_0:1,tcp/eth0".
  virtual const std::string& transports() const noexcept = 0;

  // ENETUNREACH and the like: no transport of both ends.
  virtual result<peer_id> connect(std::string_view address) = 0;
  // The transports that data to this peer takes.
  virtual std::string lanes_to(peer_id peer) const = 0;
  // `head` is copied; the memory behind `payload` stays until on_sent(), which follows.
  virtual void send(peer_id peer, std::string_view head, std::span<const iovec> payload, void* ticket) = 0;
  // Ends what is under way with this peer, in the coming calls of progress().
  virtual void close(peer_id peer) = 0;
  // Registers memory with all transports at once, so that no transfer has to. The port's until it goes.
  virtual status keep_registered(void* memory, std::size_t bytes) = 0;

  // True: something happened.
  virtual bool progress() = 0;
  // Readable when progress() has work, once arm() has said true; false: call progress() first.
  virtual int fd() const noexcept = 0;
  virtual bool arm() = 0;

 protected:
  am_port() = default;
};

}  // namespace pl::ucx
