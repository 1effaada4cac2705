// SPDX-License-Identifier: Apache-2.0
// The network as messages see it: packets, tagged parts and messages in place to ranks of other hosts. One UCX worker is
// one (ucx_fabric.hpp), and a set of rails is one (rail_set.hpp).
//
// Owns: nothing. Threads: the messenger's lock guards all calls; progress() makes the callbacks, so they run under it too.
// Errors: errno values at done(); a lost peer at listener::on_lost.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/wire_frame.hpp"
#include "os/close_on_exec.hpp"
#include "ucx/ucx_table.hpp"

namespace pl::messaging {

using ucx::open_ucx;
using ucx::to_errno;
using ucx::ucx_table;

// A frame to send, and its payload. The owner keeps the packet until done() is called; `read` may be called until then.
struct packet {
  frame head;
  std::size_t payload = 0;
  // Copies payload bytes [offset, offset + bytes) to `destination`. The trailer carries the returned errno value.
  int (*read)(packet& outgoing, std::size_t offset, void* destination, std::size_t bytes) = nullptr;
  void (*done)(packet& outgoing, int code) = nullptr;
  trailer outcome = 0;
  // The payload is at `plain`, in host memory, until done() is called. It may then be sent from there, without `read` and
  // without a trailer.
  bool is_plain = false;
  const void* plain = nullptr;
  // Not null: the frame is an RTS by UCX's rendezvous, and UCX moves these bytes of host memory when the receiver asks for
  // them. done() is called when the receiver has them or has released them. The packet has no payload then.
  const void* in_place = nullptr;
  std::size_t in_place_bytes = 0;
  const ucx_table* ucx = nullptr;  // while under way
  void* owner = nullptr;           // for its owner's callbacks
};

// Passed to done() of a packet `in_place`: nothing was sent, because UCX cannot register that memory (it may be read-only).
constexpr int kNotInPlace = EFAULT;

// A tagged send or receive, or the receive of a message in place.
struct ucx_part {
  void (*done)(ucx_part& part, int code, std::size_t bytes) = nullptr;
  void* request = nullptr;  // UCX's, while under way
  const ucx_table* ucx = nullptr;
  bool is_receive = false;
  bool is_final = false;  // UCX cannot cancel it: closing the connection ends it
  std::uint64_t tag = 0;  // of a receive from a rail set
};

// Before the bytes of a message between two rail sets (rail_set.hpp).
struct rail_head {
  std::uint32_t source = 0;  // rank
  std::uint32_t kind = 0;
  std::uint64_t number = 0;
};

// A message of a rail. It stays as it is until done() has been called as often as it was sent.
struct rail_message {
  rail_head head;
  const void* data = nullptr;
  std::size_t bytes = 0;
  void (*done)(rail_message& message) = nullptr;  // UCX does not use it any more, sent or not
  const ucx_table* ucx = nullptr;
};

class ucx_fabric;

// Handle of a message in place at its sender. If it is dropped, the sender's packet ends as if the message had been
// received. Must be destroyed before its fabric.
class remote_data {
 public:
  remote_data() = default;
  remote_data(ucx_fabric* owner, void* descriptor) noexcept : owner_(owner), descriptor_(descriptor) {}
  remote_data(remote_data&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  remote_data& operator=(remote_data&& other) noexcept;
  ~remote_data() { reset(); }
  bool is_empty() const noexcept { return descriptor_ == nullptr; }
  void reset() noexcept;

 private:
  friend class ucx_fabric;
  ucx_fabric* owner_ = nullptr;
  void* descriptor_ = nullptr;  // UCX's
};

// The packet as it travels: frame, payload, trailer.
std::size_t packed_bytes(const packet& outgoing) noexcept;
std::size_t pack(packet& outgoing, std::size_t offset, void* destination, std::size_t most);

// Bytes of one part of a message between host memories, at most `most`; 0: the whole message is one part. A message above
// 64 KiB has at least two, so that one part is copied to its destination while the next one arrives.
std::uint64_t part_bytes(std::uint64_t message, std::uint64_t most) noexcept;

// The first tag of a message's parts. A tagged receive matches any sender, so the tags are random, and only the sender of
// the parts receives them.
std::uint64_t fresh_part_tag() noexcept;

class network {
 public:
  class listener {
   public:
    // `bytes` of a packet, as packed.
    virtual void on_packet(const std::byte* whole, std::size_t bytes) = 0;
    // The same of a plain packet.
    virtual void on_plain(const void* head, std::size_t head_bytes, const std::byte* payload, std::size_t bytes) = 0;
    // The frame of a packet `in_place`.
    virtual void on_remote(const frame& head, remote_data data) = 0;
    virtual void on_lost(int rank, const char* reason) = 0;
    // The peer has said that it leaves, so its connections end.
    virtual bool has_left(int) const { return false; }
    // A message of send_on_rail().
    virtual void on_rail(const rail_head&, const std::byte*, std::size_t) {}

   protected:
    ~listener() = default;
  };
  virtual ~network() = default;
  network(const network&) = delete;
  network& operator=(const network&) = delete;

  // What the others give to set_peer().
  virtual const byte_string& address() const noexcept = 0;
  virtual const port_list& ports() const noexcept = 0;
  // Again after close(rank): another process is that rank now.
  virtual void set_peer(int rank, byte_string address, const port_list& ports) = 0;
  // Call it once the connections with this rank exist: programs that this process starts do not inherit them.
  virtual void keep_connections(int rank) const = 0;
  virtual bool has_gpu_lanes() const noexcept = 0;
  // Whether UCX reads or writes this rank's memory by RDMA. Connects.
  virtual bool has_rdma_lane(int rank) = 0;
  // Whether packets `in_place` may be sent.
  virtual bool can_send_in_place() const noexcept = 0;
  // Rails whose loss the others make up for; both ends of a connection have as many.
  virtual unsigned rails() const noexcept = 0;
  virtual std::string version() const = 0;
  // The same, with the rails to this rank.
  virtual std::string description(int rank) const = 0;
  // Bytes of one part of a message between host memories.
  virtual std::uint64_t part_bytes_of(std::uint64_t message) const noexcept = 0;

  // Readable when progress() has work, once arm() has said true; false: call progress() first.
  virtual result<int> descriptor() = 0;
  virtual bool arm() = 0;
  virtual unsigned progress() = 0;

  // done() follows, maybe before this returns.
  virtual void send(int rank, packet& outgoing) = 0;
  virtual void send_tagged(int rank, std::uint64_t tag, const void* source, std::size_t bytes, bool is_gpu_memory,
                           ucx_part& part) = 0;
  // A part that `rank` sends.
  virtual void receive_tagged(int rank, std::uint64_t tag, void* destination, std::size_t bytes, bool is_gpu_memory,
                              ucx_part& part) = 0;
  // `bytes` are those of the whole message.
  virtual void receive_remote(remote_data data, void* destination, std::size_t bytes, ucx_part& part) = 0;
  virtual void cancel_tagged(ucx_part& part) = 0;
  // Ends all pending packets and parts to this rank, in the next calls of progress(), and rejects later ones.
  virtual void close(int rank, bool at_once) = 0;
  virtual bool is_closing() const noexcept = 0;
  virtual void reap_closed() = 0;

 protected:
  network() = default;
};

}  // namespace pl::messaging
