// SPDX-License-Identifier: Apache-2.0
// One UCX worker: packets (active messages) and bulk data (tag sends whose receive the other side has posted), both to
// ranks. Everything is called under the messenger's lock, and so are the callbacks, which progress() makes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap.hpp"
#include "close_on_exec.hpp"
#include "frame.hpp"
#include "ucx_table.hpp"

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
  const ucx_table* ucx = nullptr;  // while under way
  void* owner = nullptr;           // for its owner's callbacks
};

// Bulk data under way.
struct bulk_part {
  void (*done)(bulk_part& what, int code, std::size_t bytes) = nullptr;
  void* request = nullptr;  // UCX's, while under way
  const ucx_table* ucx = nullptr;
  bool is_receive = false;
};

// The packet as it travels: frame, payload, trailer.
std::size_t packed_bytes(const packet& what) noexcept;
std::size_t pack(packet& what, std::size_t offset, void* to, std::size_t most);

class fabric {
 public:
  class listener {
   public:
    // `bytes` of a packet, as packed.
    virtual void on_packet(const std::byte* whole, std::size_t bytes) = 0;
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
  }
  // Programs that this process starts do not inherit the connections with this rank: once they exist.
  void keep_connections(int rank) const { close_on_exec_connections(ports_, peers_[static_cast<std::size_t>(rank)].ports); }
  bool has_gpu_lanes() const noexcept { return has_gpu_lanes_; }
  std::string version() const;

  unsigned progress() { return ucx_->ucp_worker_progress(worker_); }
  // done() follows, maybe before this returns.
  void send(int rank, packet& what);
  void send_bulk(int rank, std::uint64_t tag, const void* from, std::size_t bytes, bool is_gpu_memory, bulk_part& part);
  void receive_bulk(std::uint64_t tag, void* to, std::size_t bytes, bool is_gpu_memory, bulk_part& part);
  void cancel_bulk(bulk_part& part);
  // Ends everything that is under way to this rank, in the coming calls of progress(), and refuses what is sent later.
  void close(int rank, bool at_once);
  bool is_closing() const noexcept { return !closing_.empty(); }
  void reap_closed();

 private:
  struct peer {
    byte_string address;
    port_list ports{};
    ucp_ep_h endpoint = nullptr;
    bool is_closed = false;
    fabric* owner = nullptr;
    int rank = -1;
  };
  fabric(const ucx_table& ucx, int ranks, listener& to);
  status start(const options& wanted);
  status configure(ucp_config_t* config, const options& wanted) const;
  ucs_status_t connect(peer& to);
  static void on_sent(void* request, ucs_status_t code, void* user);
  static void on_bulk_sent(void* request, ucs_status_t code, void* user);
  static void on_bulk_received(void* request, ucs_status_t code, const ucp_tag_recv_info_t* info, void* user);
  static ucs_status_t on_message(void* self, const void* head, size_t head_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* how);
  static void on_error(void* of, ucp_ep_h endpoint, ucs_status_t code);

  const ucx_table* ucx_;
  listener* to_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_datatype_t packets_ = 0;
  bool has_gpu_lanes_ = false;
  byte_string address_;
  port_list ports_{};
  std::vector<peer> peers_;
  std::vector<void*> closing_;
};

}  // namespace pl::link
