// SPDX-License-Identifier: Apache-2.0
#include "ucx/am_port.hpp"

#include <cstdio>
#include <list>
#include <map>

#include "base/env.hpp"
#include "base/text.hpp"
#include "os/close_on_exec.hpp"
#include "ucx/address.hpp"
#include "ucx/lanes.hpp"
#include "ucx/ucx_table.hpp"

namespace pl::ucx {
namespace {

constexpr unsigned kMessageId = 0;
constexpr int kMaxClosingRounds = 100'000;

class port final : public am_port {
 public:
  port(const ucx_table& ucx, const options& wanted, listener& target)
      : ucx_(ucx), listener_(target), publish_(wanted.publish) {}
  ~port() override;
  status start(const options& wanted);

  const std::string& address() const noexcept override { return address_; }
  unsigned version_major() const noexcept override { return ucx_.major; }
  unsigned version_minor() const noexcept override { return ucx_.minor; }
  const std::string& transports() const noexcept override { return transports_; }
  result<peer_id> connect(std::string_view address) override;
  std::string lanes_to(peer_id id) const override;
  void send(peer_id id, std::string_view head, std::span<const iovec> payload, void* ticket) override;
  void close(peer_id id) override;
  status keep_registered(void* memory, std::size_t bytes) override;
  bool progress() override;
  int fd() const noexcept override { return fd_; }
  bool arm() override { return ended_.empty() && lost_.empty() && ucx_.ucp_worker_arm(worker_) == UCS_OK; }

 private:
  // One message under way. UCX reads head and list until it has ended.
  struct transfer {
    port* owner = nullptr;
    void* ticket = nullptr;
    bool is_receive = false;
    std::string head;
    std::vector<ucp_dt_iov_t> list;
    std::list<transfer>::iterator place;
    int code = 0;
  };
  struct peer {
    port* owner = nullptr;
    peer_id id = 0;
    ucp_ep_h endpoint = nullptr;
    bool lost = false;
  };
  status make_worker(const options& wanted);
  transfer& make(void* ticket, bool is_receive, std::span<const iovec> memory);
  // Memory as passed to UCX.
  struct view {
    const void* data;
    std::size_t count;
    ucp_datatype_t type;
  };
  view view_of(const transfer& message) const;
  void end(transfer& message, ucs_status_t code);
  // Handles the result of the UCX call that started it.
  void began(transfer& message, void* request);
  void reap_closed();
  static void on_sent(void* request, ucs_status_t code, void* user);
  static void on_received(void* request, ucs_status_t code, size_t bytes, void* user);
  static ucs_status_t on_message(void* self, const void* head, size_t head_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* received);
  static void on_error(void* user, ucp_ep_h endpoint, ucs_status_t code);

  const ucx_table& ucx_;
  listener& listener_;
  const bool publish_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int fd_ = -1;
  std::string address_, transports_;
  std::vector<ucp_mem_h> registered_;
  std::map<peer_id, peer> peers_;
  peer_id next_peer_ = 1;
  std::list<transfer> in_flight_, ended_;
  std::vector<std::pair<peer_id, std::string>> lost_;
  std::vector<std::pair<void*, peer_id>> closing_;
  exec_guard guard_;
};

status port::start(const options& wanted) {
  const auto descriptors = open_descriptors();
  auto made = make_worker(wanted);
  guard_.add_own(close_on_exec_since(descriptors));
  return made;
}

status port::make_worker(const options& wanted) {
  ucp_config_t* config = nullptr;
  if (const auto rc = ucx_.ucp_config_read(nullptr, nullptr, &config); rc != UCS_OK)
    return failed(ucx_, rc, "reading its configuration");
  if (!env_read("UCX_TLS").is_set) {
    if (wanted.rdma_only) (void)ucx_.ucp_config_modify(config, "TLS", "ib");
    // No shared memory: by it an end attaches, and reads, what the other names. UCX without the module has no name
    // "cuda_...".
    else (void)ucx_.ucp_config_modify(config, "TLS", has_cuda_module(ucx_) ? "^shm,cuda_copy,cuda_ipc" : "^shm");
  }
  (void)ucx_.ucp_config_modify(config, "MEMTYPE_CACHE", "n");  // host memory only
  avoid_faulty_protocols(ucx_, config);
  (void)tune_for_tcp(ucx_, config, wanted.rdma_only, tcp_sends::whole);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  // Not UCP_FEATURE_RMA: with it UCX's own messages write to any address that their sender chooses.
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "peerlane store";
  auto rc = ucx_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_.ucp_config_release(config);
  if (rc == UCS_ERR_NO_DEVICE && wanted.rdma_only)
    return failure{ENODEV, "UCX finds no RDMA device here (ibv_devices lists them)"};
  if (rc != UCS_OK) return failed(ucx_, rc, "ucp_init");
  transports_ = transports_in(printed([&](std::FILE* destination) { ucx_.ucp_context_print_info(context_, destination); }));

  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  rc = ucx_.ucp_worker_create(context_, &worker, &worker_);
  if (rc != UCS_OK) return failed(ucx_, rc, "ucp_worker_create");
  rc = ucx_.ucp_worker_get_efd(worker_, &fd_);
  if (rc != UCS_OK) return failed(ucx_, rc, "asking for its descriptor");

  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = &port::on_message;
  handler.arg = this;
  rc = ucx_.ucp_worker_set_am_recv_handler(worker_, &handler);
  if (rc != UCS_OK) return failed(ucx_, rc, "setting the handler of active messages");

  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  rc = ucx_.ucp_worker_get_address(worker_, &address, &bytes);
  if (rc != UCS_OK) return failed(ucx_, rc, "asking for its address");
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucx_.ucp_worker_release_address(worker_, address);
  return {};
}

port::~port() {
  for (peer_id id = 1; id < next_peer_; ++id) close(id);
  for (int i = 0; i < kMaxClosingRounds && !(closing_.empty() && in_flight_.empty()); ++i) {
    ucx_.ucp_worker_progress(worker_);
    reap_closed();
  }
  // Connections that verbs is still closing: the worker ends them, but only if no request waits for them (a UCX assertion).
  for (const auto& [request, id] : closing_) ucx_.ucp_request_free(request);
  for (const auto handle : registered_) ucx_.ucp_mem_unmap(context_, handle);
  if (worker_ != nullptr) ucx_.ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucx_.ucp_cleanup(context_);
}

status port::keep_registered(void* memory, std::size_t bytes) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_PROT;
  params.address = memory;
  params.length = bytes;
  params.prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE;
  ucp_mem_h handle = nullptr;
  if (const auto rc = ucx_.ucp_mem_map(context_, &params, &handle); rc != UCS_OK)
    return failed(ucx_, rc, "registering memory (ulimit -l?)");
  registered_.push_back(handle);
  return {};
}

// ---- Peers

result<am_port::peer_id> port::connect(std::string_view address) {
  if (auto good = check_address(address_, address); !good) return good.error();
  const std::string padded = with_padding(address);
  auto& made = peers_[next_peer_];
  made.owner = this;
  made.id = next_peer_;
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(padded.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&port::on_error, &made};
  const auto descriptors = open_descriptors();
  const auto rc = ucx_.ucp_ep_create(worker_, &params, &made.endpoint);
  close_on_exec_since(descriptors);
  if (rc != UCS_OK) {
    peers_.erase(next_peer_);
    return failed(ucx_, rc, "connecting");
  }
  return next_peer_++;
}

std::string port::lanes_to(peer_id id) const {
  const auto found = peers_.find(id);
  if (found == peers_.end() || found->second.lost) return {};
  return names_of(
      lanes_in(printed([&](std::FILE* destination) { ucx_.ucp_ep_print_info(found->second.endpoint, destination); })));
}

void port::on_error(void* user, ucp_ep_h, ucs_status_t code) {
  auto& one = *static_cast<peer*>(user);
  if (std::exchange(one.lost, true)) return;
  one.owner->lost_.emplace_back(one.id, one.owner->ucx_.ucs_status_string(code));
}

void port::close(peer_id id) {
  const auto found = peers_.find(id);
  if (found == peers_.end() || found->second.endpoint == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  found->second.lost = true;
  void* const request = ucx_.ucp_ep_close_nbx(std::exchange(found->second.endpoint, nullptr), &params);
  // The map node stays while UCX may still report the connection's end.
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) closing_.emplace_back(request, id);
  else peers_.erase(found);
}

void port::reap_closed() {
  std::erase_if(closing_, [&](const auto& one) {
    if (ucx_.ucp_request_check_status(one.first) == UCS_INPROGRESS) return false;
    ucx_.ucp_request_free(one.first);
    peers_.erase(one.second);
    return true;
  });
}

// ---- Messages

port::transfer& port::make(void* ticket, bool is_receive, std::span<const iovec> memory) {
  auto& out = in_flight_.emplace_back();
  out.place = std::prev(in_flight_.end());
  out.owner = this;
  out.ticket = ticket;
  out.is_receive = is_receive;
  for (const auto& one : memory) out.list.push_back({one.iov_base, one.iov_len});
  return out;
}

port::view port::view_of(const transfer& message) const {
  if (publish_ && message.list.size() == 1) return {message.list[0].buffer, message.list[0].length, ucp_dt_make_contig(1)};
  return {message.list.data(), message.list.size(), UCP_DATATYPE_IOV};
}

void port::end(transfer& message, ucs_status_t code) {
  message.code = to_errno(code);
  ended_.splice(ended_.end(), in_flight_, message.place);
}

void port::began(transfer& message, void* request) {
  if (request == nullptr) end(message, UCS_OK);
  else if (UCS_PTR_IS_ERR(request)) end(message, UCS_PTR_STATUS(request));
}

void port::on_sent(void* request, ucs_status_t code, void* user) {
  auto& message = *static_cast<transfer*>(user);
  message.owner->ucx_.ucp_request_free(request);
  message.owner->end(message, code);
}

void port::on_received(void* request, ucs_status_t code, size_t, void* user) { on_sent(request, code, user); }

void port::send(peer_id id, std::string_view head, std::span<const iovec> payload, void* ticket) {
  auto& message = make(ticket, false, payload);
  message.head = head;
  const auto found = peers_.find(id);
  if (found == peers_.end() || found->second.endpoint == nullptr || found->second.lost)
    return end(message, UCS_ERR_CONNECTION_RESET);
  ucp_request_param_t params{};
  const auto memory = view_of(message);
  params.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.datatype = memory.type;
  params.cb.send = &port::on_sent;
  params.user_data = &message;
  params.flags = UCP_AM_SEND_FLAG_RNDV;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  began(message, ucx_.ucp_am_send_nbx(found->second.endpoint, kMessageId, message.head.data(), message.head.size(),
                                      memory.data, memory.count, &params));
}

ucs_status_t port::on_message(void* self, const void* head, size_t head_bytes, void* data, size_t bytes,
                              const ucp_am_recv_param_t* received) {
  auto& me = *static_cast<port*>(self);
  // A peer of this protocol always sends by rendezvous.
  if ((received->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) return UCS_OK;
  std::vector<iovec> destination;
  void* ticket = nullptr;
  if (!me.listener_.on_arrival({static_cast<const char*>(head), head_bytes}, bytes, destination, ticket))
    return UCS_ERR_REJECTED;
  auto& message = me.make(ticket, true, destination);
  const auto memory = me.view_of(message);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.datatype = memory.type;
  param.cb.recv_am = &port::on_received;
  param.user_data = &message;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  me.began(message, me.ucx_.ucp_am_recv_data_nbx(me.worker_, data, const_cast<void*>(memory.data), memory.count, &param));
  return UCS_INPROGRESS;
}

bool port::progress() {
  bool moved = ucx_.ucp_worker_progress(worker_) > 0;
  if (!closing_.empty()) reap_closed();
  while (!lost_.empty()) {
    moved = true;
    const auto [id, reason] = std::move(lost_.back());
    lost_.pop_back();
    listener_.on_lost(id, reason);
  }
  while (!ended_.empty()) {
    moved = true;
    const void* const ticket = ended_.front().ticket;
    const bool is_receive = ended_.front().is_receive;
    const int code = ended_.front().code;
    ended_.pop_front();
    if (is_receive) listener_.on_received(const_cast<void*>(ticket), code);
    else listener_.on_sent(const_cast<void*>(ticket), code);
  }
  return moved;
}

}  // namespace

result<std::unique_ptr<am_port>> am_port::open(const options& wanted, listener& target) {
  const auto ucx = open_ucx(wanted.library.empty() ? env_read("PEERLANE_UCX_LIBRARY").text : wanted.library);
  if (!ucx) return ucx.error();
  auto made = std::make_unique<port>(**ucx, wanted, target);
  if (auto done = made->start(wanted); !done) return done.error();
  return std::unique_ptr<am_port>(std::move(made));
}

}  // namespace pl::ucx
