// SPDX-License-Identifier: Apache-2.0
// The network as one UCX worker. It sends packets (active messages), parts of messages (tagged sends whose receives are
// posted first), and messages in place (active messages with UCX's rendezvous).
//
// Owns: UCX's context, worker and endpoints. Threads: the messenger's lock guards all calls; callbacks run inside
// progress(), so under the lock too. Errors: errno values at done(); a lost connection at listener::on_lost.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "messaging/transport/network.hpp"

namespace pl::messaging {

class ucx_fabric final : public network {
 public:
  struct options {
    std::string library;     // path of libucp.so.0; empty: by name
    std::string rails;       // UCX net devices; empty: all
    bool gpu_lanes = false;  // let UCX detect GPU memory (takes 0.8 s at start if its CUDA modules are installed)
    bool has_rdma = false;
    std::size_t stripe_threshold = 0;
    long keepalive_ms = 0;
  };
  static result<std::unique_ptr<ucx_fabric>> open(const options& wanted, int ranks, listener& handler);
  ~ucx_fabric() override;

  const byte_string& address() const noexcept override { return address_; }
  const port_list& ports() const noexcept override { return ports_; }
  void set_peer(int rank, byte_string address, const port_list& ports) override {
    auto& remote = peers_[static_cast<std::size_t>(rank)];
    close(rank, true);  // a connection of an earlier process that ended while it was coming back
    remote.is_closed = remote.has_rdma_lane = false;
    remote.address = std::move(address);
    remote.ports = ports;
    guard_.add_peer(ports);
  }
  void keep_connections(int rank) const override {
    close_on_exec_connections(ports_, peers_[static_cast<std::size_t>(rank)].ports);
  }
  bool has_gpu_lanes() const noexcept override { return has_gpu_lanes_; }
  bool has_rdma_lane(int rank) override;
  bool can_send_in_place() const noexcept override { return true; }
  unsigned rails() const noexcept override { return 1; }
  std::string version() const override;
  std::string description(int) const override { return version(); }
  std::size_t max_part_bytes() const noexcept { return max_part_bytes_; }
  std::uint64_t part_bytes_of(std::uint64_t message) const noexcept override { return part_bytes(message, max_part_bytes_); }

  result<int> descriptor() override;
  bool arm() override { return closing_.empty() && ucx_->ucp_worker_arm(worker_) == UCS_OK; }

  unsigned progress() override { return ucx_->ucp_worker_progress(worker_); }
  void send(int rank, packet& outgoing) override;
  // For a fabric that is a rail of a set, at both ends. done() is called later, or before this returns.
  void send_on_rail(int rank, rail_message& outgoing);
  void send_tagged(int rank, std::uint64_t tag, const void* source, std::size_t bytes, bool is_gpu_memory,
                   ucx_part& part) override;
  void receive_tagged(int rank, std::uint64_t tag, void* destination, std::size_t bytes, bool is_gpu_memory,
                      ucx_part& part) override;
  void receive_remote(remote_data data, void* destination, std::size_t bytes, ucx_part& part) override;
  void cancel_tagged(ucx_part& part) override;
  void close(int rank, bool at_once) override;
  bool is_closing() const noexcept override { return !closing_.empty(); }
  void reap_closed() override;

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
  static void on_rail_sent(void* request, ucs_status_t code, void* user);
  static ucs_status_t on_rail(void* self, const void* head, size_t head_bytes, void* data, size_t bytes,
                              const ucp_am_recv_param_t* params);
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
  void* arriving_ = nullptr;  // descriptor of the RTS whose callback is running, until it is released
};

}  // namespace pl::messaging
