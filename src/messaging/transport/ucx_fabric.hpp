// SPDX-License-Identifier: Apache-2.0
// One UCX worker that sends to ranks: packets (active messages), parts of messages (tagged sends whose receives are posted
// first), and messages in place (active messages by UCX's rendezvous). The messenger's lock guards all calls. progress()
// makes the callbacks, so they run under the lock too.
//
// Owns: UCX's context, worker and endpoints. Errors: errno values at done(); a lost connection at listener::on_lost.
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

class ucx_fabric {
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
  static result<std::unique_ptr<ucx_fabric>> open(const options& wanted, int ranks, listener& handler);
  ~ucx_fabric();
  ucx_fabric(const ucx_fabric&) = delete;
  ucx_fabric& operator=(const ucx_fabric&) = delete;

  const byte_string& address() const noexcept { return address_; }
  const port_list& ports() const noexcept { return ports_; }
  void set_peer(int rank, byte_string address, const port_list& ports) {
    auto& remote = peers_[static_cast<std::size_t>(rank)];
    remote.address = std::move(address);
    remote.ports = ports;
    guard_.add_peer(ports);
  }
  // Call it once the connections with this rank exist: programs that this process starts do not inherit them.
  void keep_connections(int rank) const { close_on_exec_connections(ports_, peers_[static_cast<std::size_t>(rank)].ports); }
  bool has_gpu_lanes() const noexcept { return has_gpu_lanes_; }
  // Whether UCX reads or writes this rank's memory by RDMA. Connects.
  bool has_rdma_lane(int rank);
  std::string version() const;
  // Bytes of one part of a message between host memories.
  std::uint64_t part_bytes_of(std::uint64_t message) const noexcept { return part_bytes(message, max_part_bytes_); }

  // Readable when progress() has work, once arm() has said true; false: call progress() first.
  result<int> descriptor();
  bool arm() { return closing_.empty() && ucx_->ucp_worker_arm(worker_) == UCS_OK; }

  unsigned progress() { return ucx_->ucp_worker_progress(worker_); }
  // done() follows, maybe before this returns.
  void send(int rank, packet& outgoing);
  void send_tagged(int rank, std::uint64_t tag, const void* source, std::size_t bytes, bool is_gpu_memory, ucx_part& part);
  void receive_tagged(std::uint64_t tag, void* destination, std::size_t bytes, bool is_gpu_memory, ucx_part& part);
  // `bytes` are those of the whole message.
  void receive_remote(remote_data data, void* destination, std::size_t bytes, ucx_part& part);
  void cancel_tagged(ucx_part& part);
  // Ends all pending packets and parts to this rank, in the next calls of progress(), and rejects later ones.
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
    ucx_fabric* owner = nullptr;
    int rank = -1;
  };
  ucx_fabric(const ucx_table& ucx, int ranks, listener& handler);
  status start(const options& wanted);
  status configure(ucp_config_t* config, const options& wanted);
  ucs_status_t connect(peer& destination);
  bool is_from(std::uint32_t source, const ucp_am_recv_param_t* params);
  void release_descriptor(void* descriptor) noexcept;
  static void on_sent(void* request, ucs_status_t code, void* user);
  static void on_tagged_sent(void* request, ucs_status_t code, void* user);
  static void on_tagged_received(void* request, ucs_status_t code, const ucp_tag_recv_info_t* info, void* user);
  static ucs_status_t on_message(void* self, const void* head, size_t head_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* params);
  static ucs_status_t on_plain(void* self, const void* head, size_t head_bytes, void* data, size_t bytes,
                               const ucp_am_recv_param_t* params);
  static ucs_status_t on_rts(void* self, const void* head, size_t head_bytes, void* data, size_t bytes,
                             const ucp_am_recv_param_t* params);
  static void on_remote_received(void* request, ucs_status_t code, size_t bytes, void* user);
  status set_handler(unsigned id, ucp_am_recv_callback_t handler);
  static void on_error(void* user_data, ucp_ep_h endpoint, ucs_status_t code);

  const ucx_table* ucx_;
  listener* handler_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_datatype_t packets_ = 0;
  bool has_gpu_lanes_ = false;
  std::size_t max_part_bytes_ = 0;
  byte_string address_;
  port_list ports_{};
  exec_guard guard_;
  std::vector<peer> peers_;
  std::vector<void*> closing_;
  void* arriving_ = nullptr;  // descriptor of the RTS whose callback runs, until it is released
};

}  // namespace pl::messaging
