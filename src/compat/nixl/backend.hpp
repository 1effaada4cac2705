// SPDX-License-Identifier: Apache-2.0
// The backend that a NIXL agent creates as "PEERLANE": host and GPU memory of this process and of other agents on this
// host, moved by DMA channels; notifications by unix sockets.
//
// As thread-safe as NIXL requires: calls may run concurrently, except for those on one request.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "compat/nixl/nixl_abi.hpp"
#include "compat/nixl/peer_server.hpp"

namespace pl::nixl {

class backend final : public abi::engine {
 public:
  explicit backend(const abi::engine_options& options);
  ~backend() override;

  bool supports_remote() const override { return true; }
  bool supports_local() const override { return true; }
  bool supports_notif() const override { return true; }
  abi::memory_types get_supported_mems() const override { return {abi::memory_type::dram, abi::memory_type::vram}; }
  abi::status register_mem(const abi::blob_descriptor& memory, const abi::memory_type& type, abi::metadata*& out) override;
  abi::status deregister_mem(abi::metadata* memory) override;
  abi::status connect(const std::string& agent) override;
  abi::status disconnect(const std::string& agent) override;
  abi::status unload_md(abi::metadata* memory) override;
  abi::status prep_xfer(const abi::direction& way, const abi::transfer_list& local, const abi::transfer_list& remote,
                        const std::string& agent, abi::request_handle*& handle,
                        const abi::transfer_options* options) const override;
  abi::status post_xfer(const abi::direction& way, const abi::transfer_list& local, const abi::transfer_list& remote,
                        const std::string& agent, abi::request_handle*& handle,
                        const abi::transfer_options* options) const override;
  abi::status check_xfer(abi::request_handle* handle) const override;
  abi::status release_req_h(abi::request_handle* handle) const override;
  abi::status prep_mem_view(const void*, void*&, const abi::transfer_options*) const override;
  abi::status prep_mem_view(const abi::transfer_list&, void*&, const abi::transfer_options*) const override;
  void release_mem_view(void*) const override {}
  abi::status get_public_data(const abi::metadata* memory, std::string& out) const override;
  abi::status get_conn_info(std::string& out) const override;
  abi::status load_remote_conn_info(const std::string& agent, const std::string& info) override;
  abi::status load_remote_md(const abi::blob_descriptor& memory, const abi::memory_type& type, const std::string& agent,
                             abi::metadata*& out) override;
  abi::status load_local_md(abi::metadata* memory, abi::metadata*& out) override;
  abi::status get_notifs(abi::notifications& out) override;
  abi::status gen_notif(const std::string& agent, const std::string& message) const override;
  abi::status query_mem(const abi::descriptor_list<abi::blob_descriptor>&,
                        std::vector<std::optional<abi::parameters>>&) const override;
  abi::status estimate_xfer_cost(const abi::direction&, const abi::transfer_list&, const abi::transfer_list&,
                                 const std::string&, abi::request_handle* const&, std::chrono::microseconds&,
                                 std::chrono::microseconds&, int&, const void*) const override;

 private:
  struct known_memory;
  struct request;
  bool is_forked() const noexcept;
  static abi::status refuse_child();
  std::shared_ptr<peer> find_peer(const std::string& agent) const;
  status compile(request& made, abi::direction way, const abi::transfer_list& local, const abi::transfer_list& remote) const;
  status notify(const std::string& agent, const std::shared_ptr<peer>& receiver, const std::string& text) const;

  const int process_;
  const std::shared_ptr<gpu_table> gpus_;
  const std::shared_ptr<cpu_mover> mover_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<peer>> peers_;
  std::unique_ptr<peer_server> server_;
};

}  // namespace pl::nixl
