// SPDX-License-Identifier: Apache-2.0
// Interface of the network to ranks on other hosts: packets, tagged parts, and messages in place. Implemented by one UCX
// worker (ucx_fabric.hpp) and by a set of rails (rail_set.hpp).
//
// Owns: nothing. Threads: the messenger's lock guards all calls; callbacks run inside progress(), so under the lock too.
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

// A frame to send, with its payload. Its owner keeps the packet until done() is called; `read` may be called until then.
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
  // Not null: the frame is sent as an RTS of UCX's rendezvous, and UCX moves these bytes of host memory when the receiver
  // asks for them. done() is called when the receiver has received or released them. Such a packet has no payload.
  const void* in_place = nullptr;
  std::size_t in_place_bytes = 0;
  const ucx_table* ucx = nullptr;  // set while the send is in progress
  void* owner = nullptr;           // for the owner's callbacks
};

// Passed to done() of a packet in place: nothing was sent, because UCX cannot register the memory (it may be read-only).
constexpr int kNotInPlace = EFAULT;

// A tagged send or receive, or the receive of a message in place. Must stay valid until done() is called.
struct ucx_part {
  void (*done)(ucx_part& part, int code, std::size_t bytes) = nullptr;
  void* request = nullptr;  // UCX's request while it is in progress
  const ucx_table* ucx = nullptr;
  bool is_receive = false;
  bool is_final = false;  // UCX cannot cancel it; it ends when the connection is closed
  std::uint64_t tag = 0;  // of a receive from a rail set
};

// Header of a message between two rail sets (rail_set.hpp). Part of the wire format.
struct rail_head {
  std::uint32_t source = 0;  // rank of the sender
  std::uint32_t kind = 0;    // rail_kind (rail_kinds.hpp)
  std::uint64_t number = 0;  // its meaning depends on the kind
};

// A message over a rail. Its owner must not change or free it until done() has been called once for each send.
struct rail_message {
  rail_head head;
  const void* data = nullptr;
  std::size_t bytes = 0;
  void (*done)(rail_message& message) = nullptr;  // UCX no longer uses it, whether it was sent or not
  const ucx_table* ucx = nullptr;
};

class ucx_fabric;

// The receiver's handle of a message in place, whose bytes are still at the sender. If the handle is dropped, the sender's
// packet ends as if the message had been received. Must be destroyed before its fabric.
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
  void* descriptor_ = nullptr;  // owned by UCX
};

// Serialises a packet as frame, payload and trailer. pack() writes at most `most` bytes from byte `offset` on, and returns
// their number.
std::size_t packed_bytes(const packet& outgoing) noexcept;
std::size_t pack(packet& outgoing, std::size_t offset, void* destination, std::size_t most);

// Size of the parts of a message between host memories, in bytes, at most `most`; 0: the whole message is one part. A
// message above 64 KiB has at least two parts, so that one is copied to its destination while the next one arrives.
std::uint64_t part_bytes(std::uint64_t message, std::uint64_t most) noexcept;

// Returns a tag for the first part of a message. A tagged receive in UCX matches any sender, so tags are random and are told
// only to the process that sends the parts.
std::uint64_t fresh_part_tag() noexcept;

class network {
 public:
  class listener {
   public:
    // A packet has arrived, in the format of pack().
    virtual void on_packet(const std::byte* whole, std::size_t bytes) = 0;
    // A plain packet has arrived.
    virtual void on_plain(const void* head, std::size_t head_bytes, const std::byte* payload, std::size_t bytes) = 0;
    // The frame of a packet in place has arrived; `data` receives or releases its bytes.
    virtual void on_remote(const frame& head, remote_data data) = 0;
    // The connection with the peer is lost.
    virtual void on_lost(int rank, const char* reason) = 0;
    // Whether the peer has announced that it leaves, so that the end of its connections is no loss.
    virtual bool has_left(int) const { return false; }
    // A message sent with send_on_rail() has arrived.
    virtual void on_rail(const rail_head&, const std::byte*, std::size_t) {}

   protected:
    ~listener() = default;
  };
  virtual ~network() = default;
  network(const network&) = delete;
  network& operator=(const network&) = delete;

  // This process's address and ports, which other processes pass to set_peer().
  virtual const byte_string& address() const noexcept = 0;
  virtual const port_list& ports() const noexcept = 0;
  // Sets the address of a peer. Call it again after close(rank) if a new process has the rank.
  virtual void set_peer(int rank, byte_string address, const port_list& ports) = 0;
  // Marks the connections with this rank close-on-exec. Call it once they exist.
  virtual void keep_connections(int rank) const = 0;
  virtual bool has_gpu_lanes() const noexcept = 0;
  // Whether UCX accesses this rank's memory by RDMA. Connects to the rank if necessary.
  virtual bool has_rdma_lane(int rank) = 0;
  // Whether packets in place can be sent.
  virtual bool can_send_in_place() const noexcept = 0;
  // Number of rails with failover; the same at both ends of a connection.
  virtual unsigned rails() const noexcept = 0;
  virtual std::string version() const = 0;
  // version(), with the rails to this rank.
  virtual std::string description(int rank) const = 0;
  // Size of the parts of a message between host memories, in bytes; see part_bytes().
  virtual std::uint64_t part_bytes_of(std::uint64_t message) const noexcept = 0;

  // A descriptor that becomes readable when progress() has work, once arm() has returned true. If arm() returns false, call
  // progress() first.
  virtual result<int> descriptor() = 0;
  virtual bool arm() = 0;
  virtual unsigned progress() = 0;

  // done() is called later, or before this returns.
  virtual void send(int rank, packet& outgoing) = 0;
  virtual void send_tagged(int rank, std::uint64_t tag, const void* source, std::size_t bytes, bool is_gpu_memory,
                           ucx_part& part) = 0;
  // Receives a part that `rank` sends with this tag.
  virtual void receive_tagged(int rank, std::uint64_t tag, void* destination, std::size_t bytes, bool is_gpu_memory,
                              ucx_part& part) = 0;
  // Receives a message in place. `bytes`: size of the whole message.
  virtual void receive_remote(remote_data data, void* destination, std::size_t bytes, ucx_part& part) = 0;
  virtual void cancel_tagged(ucx_part& part) = 0;
  // Closes the connection: ends all pending packets and parts to this rank during the next calls of progress(), and rejects
  // new ones.
  virtual void close(int rank, bool at_once) = 0;
  virtual bool is_closing() const noexcept = 0;
  virtual void reap_closed() = 0;

 protected:
  network() = default;
};

}  // namespace pl::messaging
