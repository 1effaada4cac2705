// SPDX-License-Identifier: Apache-2.0
// One UCX worker: packets (active messages), bulk data (tag sends whose receive the other side has posted), and whole
// messages that wait at their sender until the other side asks for them (active messages by UCX's rendezvous), all to ranks.
// Everything is called under the messenger's lock, and so are the callbacks, which progress() makes.
#pragma once

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/transport/close_on_exec.hpp"
#include "messaging/wire_frame.hpp"
#include "ucx/ucx_table.hpp"

namespace pl::link {

using ucx::open_ucx;
using ucx::to_errno;
using ucx::ucx_table;

// A frame on its way, and where its payload is. Its owner keeps it until done() is called; `read` may be called until then.
struct packet {
  frame head;
  std::size_t payload = 0;
  // Copies payload bytes [offset, offset + bytes) to `to`; an errno value that the trailer will carry.
  int (*read)(packet& from, std::size_t offset, void* to, std::size_t bytes) = nullptr;
  void (*done)(packet& what, int code) = nullptr;
  trailer outcome = 0;
  // The payload lies at `plain`, in host memory, until done() is called: where that is faster nothing is read through
  // `read`, and no trailer travels.
  bool is_plain = false;
  const void* plain = nullptr;
  // Not null: the frame goes as an announcement, and UCX moves these bytes of host memory once the receiver asks for them;
  // done() is called when it has them or has let go of them. There is no payload then.
  const void* in_place = nullptr;
  std::size_t in_place_bytes = 0;
  const ucx_table* ucx = nullptr;  // while under way
  void* owner = nullptr;           // for its owner's callbacks
};

// To done() of a packet `in_place`: nothing was sent, UCX cannot have that memory read (it may be read-only).
constexpr int kNotInPlace = EFAULT;

// Bulk data under way.
struct bulk_part {
  void (*done)(bulk_part& what, int code, std::size_t bytes) = nullptr;
  void* request = nullptr;  // UCX's, while under way
  const ucx_table* ucx = nullptr;
  bool is_receive = false;
  bool is_final = false;  // UCX cannot cancel it: closing the connection ends it
};

class fabric;

// A message that waits at its sender. Dropped without being received, its sender's packet ends as if it had been. Belongs to
// a fabric, and must be gone before it.
class remote_data {
 public:
  remote_data() = default;
  remote_data(fabric* owner, void* descriptor) noexcept : owner_(owner), descriptor_(descriptor) {}
  remote_data(remote_data&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  remote_data& operator=(remote_data&& other) noexcept;
  ~remote_data() { reset(); }
  bool is_empty() const noexcept { return descriptor_ == nullptr; }
  void reset() noexcept;

 private:
  friend class fabric;
  fabric* owner_ = nullptr;
  void* descriptor_ = nullptr;  // UCX's
};

// The packet as it travels: frame, payload, trailer.
std::size_t packed_bytes(const packet& what) noexcept;
std::size_t pack(packet& what, std::size_t offset, void* to, std::size_t most);

// Of a part of a message between host memories, where a part has `most` bytes; 0: the whole message is one. Two at least
// of more than 64 KiB: a part is copied to its place when all of it has come, while the next one comes.
std::uint64_t part_bytes(std::uint64_t message, std::uint64_t most) noexcept;

// Where the tags of a message's parts begin: they match whoever sends them, so nobody may guess them. Only the sender that
// is asked for the parts is told.
std::uint64_t fresh_part_tag() noexcept;

class fabric {
 public:
  class listener {
   public:
    // `bytes` of a packet, as packed.
    virtual void on_packet(const std::byte* whole, std::size_t bytes) = 0;
    // The same of a plain packet.
    virtual void on_plain(const void* head, std::size_t head_bytes, const std::byte* payload, std::size_t bytes) = 0;
    // The frame of a packet whose bytes wait at their sender.
    virtual void on_remote(const frame& head, remote_data what) = 0;
    virtual void on_lost(int rank, const char* reason) = 0;

   protected:
    ~listener() = default;
  };
  struct options {
    std::string library;
    std::string rails;
    bool gpu_lanes = false;  // let UCX look for GPU memory types (0.8 s at start, where its CUDA modules are there)
    bool has_rdma = false;
    std::size_t stripe_threshold = 0;
    long keepalive_ms = 0;
  };
  static result<std::unique_ptr<fabric>> open(const options& wanted, int ranks, listener& to);
  ~fabric();
  fabric(const fabric&) = delete;
  fabric& operator=(const fabric&) = delete;

  const byte_string& address() const noexcept { return address_; }
  const port_list& ports() const noexcept { return ports_; }
  void set_peer(int rank, byte_string address, const port_list& ports) {
    auto& of = peers_[static_cast<std::size_t>(rank)];
    of.address = std::move(address);
    of.ports = ports;
    guard_.add_peer(ports);
  }
  // Programs that this process starts do not inherit the connections with this rank: once they exist.
  void keep_connections(int rank) const { close_on_exec_connections(ports_, peers_[static_cast<std::size_t>(rank)].ports); }
  bool has_gpu_lanes() const noexcept { return has_gpu_lanes_; }
  // Whether UCX reads or writes this rank's memory by RDMA. Connects.
  bool has_rdma_lane(int rank);
  std::string version() const;
  // Bytes of one part of a message between host memories.
  std::uint64_t part_bytes_of(std::uint64_t message) const noexcept { return part_bytes(message, most_of_part_); }

  unsigned progress() { return ucx_->ucp_worker_progress(worker_); }
  // done() follows, maybe before this returns.
  void send(int rank, packet& what);
  void send_bulk(int rank, std::uint64_t tag, const void* from, std::size_t bytes, bool is_gpu_memory, bulk_part& part);
  void receive_bulk(std::uint64_t tag, void* to, std::size_t bytes, bool is_gpu_memory, bulk_part& part);
  // `bytes` are those of the whole message.
  void receive_remote(remote_data what, void* to, std::size_t bytes, bulk_part& part);
  void cancel_bulk(bulk_part& part);
  // Ends everything that is under way to this rank, in the coming calls of progress(), and refuses what is sent later.
  void close(int rank, bool at_once);
  bool is_closing() const noexcept { return !closing_.empty(); }
  void reap_closed();

 private:
  friend class remote_data;
  struct peer {
    byte_string address;
    port_list ports{};
    ucp_ep_h endpoint = nullptr;
    bool is_closed = false;
    bool has_rdma_lane = false;
    fabric* owner = nullptr;
    int rank = -1;
  };
  fabric(const ucx_table& ucx, int ranks, listener& to);
  status start(const options& wanted);
  status configure(ucp_config_t* config, const options& wanted);
  ucs_status_t connect(peer& to);
  bool is_from(std::uint32_t source, const ucp_am_recv_param_t* how);
  void let_go(void* descriptor) noexcept;
  static void on_sent(void* request, ucs_status_t code, void* user);
  static void on_bulk_sent(void* request, ucs_status_t code, void* user);
  static void on_bulk_received(void* request, ucs_status_t code, const ucp_tag_recv_info_t* info, void* user);
  static ucs_status_t on_message(void* self, const void* head, size_t head_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* how);
  static ucs_status_t on_plain(void* self, const void* head, size_t head_bytes, void* data, size_t bytes,
                               const ucp_am_recv_param_t* how);
  static ucs_status_t on_announcement(void* self, const void* head, size_t head_bytes, void* data, size_t bytes,
                                      const ucp_am_recv_param_t* how);
  static void on_remote_received(void* request, ucs_status_t code, size_t bytes, void* user);
  status set_handler(unsigned id, ucp_am_recv_callback_t handler);
  static void on_error(void* of, ucp_ep_h endpoint, ucs_status_t code);

  const ucx_table* ucx_;
  listener* to_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_datatype_t packets_ = 0;
  bool has_gpu_lanes_ = false;
  std::size_t most_of_part_ = 0;
  byte_string address_;
  port_list ports_{};
  exec_guard guard_;
  std::vector<peer> peers_;
  std::vector<void*> closing_;
  void* arriving_ = nullptr;  // descriptor of the announcement whose callback runs, until it is let go
};

}  // namespace pl::link
