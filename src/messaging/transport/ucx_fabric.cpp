// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/ucx_fabric.hpp"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "base/env.hpp"
#include "base/text.hpp"
#include "ucx/address.hpp"
#include "ucx/lanes.hpp"

namespace pl::messaging {
namespace {

constexpr unsigned kPacketId = 0, kPlainId = 1, kRtsId = 2, kRailId = 3;
// Over TCP UCX writes scattered data to the socket piece by piece. Below this size one copy and one write are faster.
constexpr std::size_t kPackedBelow = 4096;

// Every failure to send means a lost peer, except lack of memory.
int sending_code(ucs_status_t code) {
  const int number = to_errno(code);
  return number == 0 || number == ENOMEM ? number : ECONNRESET;
}

}  // namespace

std::size_t packed_bytes(const packet& outgoing) noexcept {
  return frame_bytes(outgoing.head.kind) + outgoing.payload + sizeof(trailer);
}

std::size_t pack(packet& outgoing, std::size_t offset, void* destination, std::size_t most) {
  auto* out = static_cast<std::byte*>(destination);
  std::size_t left = std::min(most, packed_bytes(outgoing) - offset);
  const std::size_t packed = left, head_bytes = frame_bytes(outgoing.head.kind);
  const auto take = [&](std::size_t begin, std::size_t bytes, auto&& copy) {
    if (left == 0 || offset >= begin + bytes) return;
    const std::size_t skip = offset - begin;
    const std::size_t part = std::min(left, bytes - skip);
    copy(skip, out, part);
    out += part;
    offset += part;
    left -= part;
  };
  take(0, head_bytes, [&](std::size_t skip, std::byte* target, std::size_t part) {
    std::memcpy(target, reinterpret_cast<const std::byte*>(&outgoing.head) + skip, part);
  });
  take(head_bytes, outgoing.payload, [&](std::size_t skip, std::byte* target, std::size_t part) {
    if (outgoing.outcome == 0) outgoing.outcome = outgoing.read(outgoing, skip, target, part);
    if (outgoing.outcome != 0) std::memset(target, 0, part);
  });
  take(head_bytes + outgoing.payload, sizeof(trailer), [&](std::size_t skip, std::byte* target, std::size_t part) {
    std::memcpy(target, reinterpret_cast<const std::byte*>(&outgoing.outcome) + skip, part);
  });
  return packed;
}

std::uint64_t part_bytes(std::uint64_t message, std::uint64_t most) noexcept {
  constexpr std::uint64_t kPage = 4096, kMin = 64 << 10;
  if (most == 0) return message;
  return std::clamp(((message + 1) / 2 + kPage - 1) / kPage * kPage, std::min(kMin, most), most);
}

std::uint64_t fresh_part_tag() noexcept {
  static std::atomic<std::uint64_t> count{1};
  std::uint64_t tag = 0;
  // Before the kernel's random pool is ready (just after boot) the tags are at least unique.
  if (getrandom(&tag, sizeof tag, GRND_NONBLOCK) != sizeof tag) tag = count.fetch_add(1) << 32;
  return tag;
}

ucx_fabric::ucx_fabric(const ucx_table& ucx, int ranks, listener& handler)
    : ucx_(&ucx), handler_(&handler), peers_(static_cast<std::size_t>(ranks)) {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    peers_[i].owner = this;
    peers_[i].rank = static_cast<int>(i);
  }
}

result<std::unique_ptr<ucx_fabric>> ucx_fabric::open(const options& wanted, int ranks, listener& handler) {
  auto ucx = open_ucx(wanted.library);
  if (!ucx) return std::move(ucx).error();
  std::unique_ptr<ucx_fabric> made(new ucx_fabric(**ucx, ranks, handler));
  if (auto done = made->start(wanted); !done) return std::move(done).error();
  return made;
}

std::string ucx_fabric::version() const { return format("UCX %u.%u.%u", ucx_->major, ucx_->minor, ucx_->release); }

status ucx_fabric::configure(ucp_config_t* config, const options& wanted) {
  const auto set = [&](const char* name, const std::string& value) {
    return ucx_->ucp_config_modify(config, name, value.c_str()) == UCS_OK;
  };
  // Settings unknown to a version keep their default. A user's UCX_TLS takes precedence.
  if (!env_read("UCX_TLS").is_set) {
    // Processes of one node that share no memory count as remote.
    std::string excluded = "shm";
    if (!wanted.gpu_lanes && ucx::has_cuda_module(*ucx_)) excluded += ",cuda_copy,cuda_ipc";
    set("TLS", "^" + excluded);
  }
  if (!wanted.gpu_lanes) set("MEMTYPE_CACHE", "n");
  ucx::avoid_faulty_protocols(*ucx_, config);
  if (!wanted.rails.empty() && !set("NET_DEVICES", wanted.rails))
    return failure{EINVAL, format("UCX does not take '%s' as its list of net devices", wanted.rails.c_str())};
  // Without RDMA UCX's rendezvous makes the same copies with one more round trip: receives of parts are already posted
  // when the sender sends.
  const bool is_one_rail = wanted.stripe_threshold == 0 && wanted.rails.find(',') == std::string::npos;
  if (!wanted.has_rdma && is_one_rail && !env_read("UCX_RNDV_THRESH").is_set) set("RNDV_THRESH", "inf");
  max_part_bytes_ = ucx::tune_for_tcp(*ucx_, config, wanted.has_rdma, ucx::tcp_sends::in_parts);
  if (wanted.stripe_threshold != 0) set("MIN_RNDV_CHUNK_SIZE", format("%zu", wanted.stripe_threshold));
  if (wanted.keepalive_ms != 0) set("KEEPALIVE_INTERVAL", format("%ldms", wanted.keepalive_ms));
  return {};
}

result<int> ucx_fabric::descriptor() {
  int fd = -1;
  const auto rc = ucx_->ucp_worker_get_efd(worker_, &fd);
  if (rc != UCS_OK) return ucx::failed(*ucx_, rc, "ucp_worker_get_efd");
  return fd;
}

status ucx_fabric::start(const options& wanted) {
  ucp_config_t* config = nullptr;
  if (const auto rc = ucx_->ucp_config_read(nullptr, nullptr, &config); rc != UCS_OK)
    return ucx::failed(*ucx_, rc, "reading its configuration");
  if (auto done = configure(config, wanted); !done) return ucx_->ucp_config_release(config), done;
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = peers_.size();
  params.name = "peerlane";
  const auto descriptors = open_descriptors();
  auto rc = ucx_->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_->ucp_config_release(config);
  if (rc != UCS_OK) return ucx::failed(*ucx_, rc, "ucp_init");

  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucx_->ucp_context_query(context_, &attributes) == UCS_OK)
    has_gpu_lanes_ = wanted.gpu_lanes && (attributes.memory_types & (1ull << UCS_MEMORY_TYPE_CUDA)) != 0;

  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // the messenger's lock serialises all calls
  rc = ucx_->ucp_worker_create(context_, &worker, &worker_);
  if (rc != UCS_OK) return ucx::failed(*ucx_, rc, "ucp_worker_create");

  if (auto done = set_handler(kPacketId, &ucx_fabric::on_message); !done) return done;
  if (auto done = set_handler(kPlainId, &ucx_fabric::on_plain); !done) return done;
  if (auto done = set_handler(kRtsId, &ucx_fabric::on_rts); !done) return done;
  if (auto done = set_handler(kRailId, &ucx_fabric::on_rail); !done) return done;

  static const ucp_generic_dt_ops_t kPacketType = {
      [](void*, const void* buffer, size_t) { return const_cast<void*>(buffer); },
      [](void*, void* buffer, size_t) { return buffer; },
      [](void* state) -> size_t { return packed_bytes(*static_cast<packet*>(state)); },
      [](void* state, size_t offset, void* destination, size_t most) -> size_t {
        return pack(*static_cast<packet*>(state), offset, destination, most);
      },
      [](void*, size_t, const void*, size_t) { return UCS_ERR_UNSUPPORTED; },
      [](void*) {}};
  rc = ucx_->ucp_dt_create_generic(&kPacketType, this, &packets_);
  if (rc != UCS_OK) return ucx::failed(*ucx_, rc, "making a datatype");

  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  rc = ucx_->ucp_worker_get_address(worker_, &address, &bytes);
  ports_ = close_on_exec_since(descriptors);
  guard_.add_own(ports_);
  if (rc != UCS_OK) return ucx::failed(*ucx_, rc, "asking for its address");
  const auto* first = reinterpret_cast<const std::byte*>(address);
  address_.assign(first, first + bytes);
  ucx_->ucp_worker_release_address(worker_, address);
  return {};
}

status ucx_fabric::set_handler(unsigned id, ucp_am_recv_callback_t handler) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = id;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = handler;
  params.arg = this;
  const auto rc = ucx_->ucp_worker_set_am_recv_handler(worker_, &params);
  if (rc != UCS_OK) return ucx::failed(*ucx_, rc, "setting a handler of active messages");
  return {};
}

ucx_fabric::~ucx_fabric() {
  for (auto& each : peers_) close(each.rank, true);
  for (int i = 0; i < 10000 && !closing_.empty(); ++i) {
    progress();
    reap_closed();
  }
  // Verbs may still tear connections down. Destroying the worker ends them once their requests are freed (UCX asserts
  // that).
  for (void* const request : closing_) ucx_->ucp_request_free(request);
  if (packets_ != 0) ucx_->ucp_dt_destroy(packets_);
  if (worker_ != nullptr) ucx_->ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucx_->ucp_cleanup(context_);
}

ucs_status_t ucx_fabric::connect(peer& destination) {
  if (destination.endpoint != nullptr) return UCS_OK;
  if (destination.is_closed) return UCS_ERR_CONNECTION_RESET;
  const auto view = [](const byte_string& bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  if (const auto good = ucx::check_address(view(address_), view(destination.address)); !good) {
    handler_->on_lost(destination.rank, good.error().message.c_str());
    return UCS_ERR_INVALID_ADDR;
  }
  const std::string padded = ucx::with_padding(view(destination.address));
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(padded.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&ucx_fabric::on_error, &destination};
  const auto rc = ucx_->ucp_ep_create(worker_, &params, &destination.endpoint);
  if (rc != UCS_OK) {
    // No endpoint exists whose error callback could report it: for example two rails without a route.
    destination.endpoint = nullptr;
    handler_->on_lost(destination.rank,
                      format("UCX finds no transport to it (%s): do the net devices of both (PEERLANE_LINK_RAILS, "
                             "UCX_NET_DEVICES, UCX_TLS) reach each other?",
                             ucx_->ucs_status_string(rc))
                          .c_str());
    return rc;
  }
  keep_connections(destination.rank);
  destination.has_rdma_lane = ucx::has_rdma_lane(
      ucx::lanes_in(ucx::printed([&](std::FILE* text_file) { ucx_->ucp_ep_print_info(destination.endpoint, text_file); })));
  return rc;
}

bool ucx_fabric::has_rdma_lane(int rank) {
  auto& destination = peers_[static_cast<std::size_t>(rank)];
  return connect(destination) == UCS_OK && destination.has_rdma_lane;
}

// Errors of the endpoint of an earlier process say nothing about its successor.
void ucx_fabric::on_error(void* user_data, ucp_ep_h endpoint, ucs_status_t code) {
  auto* const lost = static_cast<peer*>(user_data);
  if (lost->endpoint != endpoint) return;
  lost->owner->handler_->on_lost(lost->rank, lost->owner->ucx_->ucs_status_string(code));
}

// ---- Packets

void ucx_fabric::send(int rank, packet& outgoing) {
  auto& destination = peers_[static_cast<std::size_t>(rank)];
  outgoing.outcome = 0;
  outgoing.ucx = ucx_;
  if (const auto rc = connect(destination); rc != UCS_OK) return outgoing.done(outgoing, sending_code(rc));
  // UCX sends contiguous bytes in fewer steps than a generic datatype, and small ones without a request.
  const bool is_plain = outgoing.is_plain && (destination.has_rdma_lane || outgoing.payload >= kPackedBelow);
  const bool is_contiguous = is_plain || outgoing.in_place != nullptr;
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  if (!is_contiguous) params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
  params.datatype = packets_;
  params.cb.send = &ucx_fabric::on_sent;
  params.user_data = &outgoing;
  params.flags = outgoing.in_place != nullptr ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  params.flags |= UCP_AM_SEND_FLAG_REPLY;  // tells the receiver through which endpoint it arrives
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  const std::size_t head_bytes = frame_bytes(outgoing.head.kind);
  void* const request =
      outgoing.in_place != nullptr ? ucx_->ucp_am_send_nbx(destination.endpoint, kRtsId, &outgoing.head, head_bytes,
                                                           outgoing.in_place, outgoing.in_place_bytes, &params)
      : is_plain ? ucx_->ucp_am_send_nbx(destination.endpoint, kPlainId, &outgoing.head, head_bytes, outgoing.plain,
                                         outgoing.payload, &params)
                 : ucx_->ucp_am_send_nbx(destination.endpoint, kPacketId, nullptr, 0, &outgoing, 1, &params);
  if (request == nullptr) outgoing.done(outgoing, 0);
  else if (UCS_PTR_IS_ERR(request))
    outgoing.done(outgoing, outgoing.in_place == nullptr ? sending_code(UCS_PTR_STATUS(request)) : kNotInPlace);
}

void ucx_fabric::on_sent(void* request, ucs_status_t code, void* user) {
  auto& outgoing = *static_cast<packet*>(user);
  outgoing.ucx->ucp_request_free(request);
  outgoing.done(outgoing, sending_code(code));
}

// Whether a frame that claims to be from `source` came through the endpoint of that rank. UCX assigns incoming data to
// the endpoint that was created with the sending worker's address, which the bootstrap exchanged and which is unique.
bool ucx_fabric::is_from(std::uint32_t source, const ucp_am_recv_param_t* params) {
  if (source >= peers_.size() || (params->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return false;
  auto& sender = peers_[source];
  if (sender.endpoint == nullptr && (sender.is_closed || connect(sender) != UCS_OK)) return false;
  return sender.endpoint == params->reply_ep;
}

ucs_status_t ucx_fabric::on_message(void* self, const void*, size_t, void* data, size_t bytes,
                                    const ucp_am_recv_param_t* params) {
  frame head;
  constexpr auto kMin = frame_bytes(frame_kind::eager);
  if (bytes < kMin) return UCS_OK;
  std::memcpy(static_cast<void*>(&head), data, kMin);
  if (!static_cast<ucx_fabric*>(self)->is_from(head.source, params)) return UCS_OK;
  static_cast<ucx_fabric*>(self)->handler_->on_packet(static_cast<const std::byte*>(data), bytes);
  return UCS_OK;
}

ucs_status_t ucx_fabric::on_plain(void* self, const void* head, size_t head_bytes, void* data, size_t bytes,
                                  const ucp_am_recv_param_t* params) {
  if ((params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
  frame seen;
  constexpr auto kMin = frame_bytes(frame_kind::eager);
  if (head_bytes < kMin) return UCS_OK;
  std::memcpy(static_cast<void*>(&seen), head, kMin);
  if (!static_cast<ucx_fabric*>(self)->is_from(seen.source, params)) return UCS_OK;
  static_cast<ucx_fabric*>(self)->handler_->on_plain(head, head_bytes, static_cast<const std::byte*>(data), bytes);
  return UCS_OK;
}

// ---- Messages of a rail

void ucx_fabric::send_on_rail(int rank, rail_message& outgoing) {
  auto& destination = peers_[static_cast<std::size_t>(rank)];
  outgoing.ucx = ucx_;
  if (connect(destination) != UCS_OK) return outgoing.done(outgoing);
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.send = &ucx_fabric::on_rail_sent;
  params.user_data = &outgoing;
  params.flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  void* const request = ucx_->ucp_am_send_nbx(destination.endpoint, kRailId, &outgoing.head, sizeof outgoing.head,
                                              outgoing.data, outgoing.bytes, &params);
  // A failure belongs to the endpoint, and on_error() reports it.
  if (request == nullptr || UCS_PTR_IS_ERR(request)) outgoing.done(outgoing);
}

void ucx_fabric::on_rail_sent(void* request, ucs_status_t, void* user) {
  auto& outgoing = *static_cast<rail_message*>(user);
  outgoing.ucx->ucp_request_free(request);
  outgoing.done(outgoing);
}

ucs_status_t ucx_fabric::on_rail(void* self, const void* raw_head, size_t head_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* params) {
  rail_head head;
  if (head_bytes != sizeof head || (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
  std::memcpy(&head, raw_head, sizeof head);
  if (!static_cast<ucx_fabric*>(self)->is_from(head.source, params)) return UCS_OK;
  static_cast<ucx_fabric*>(self)->handler_->on_rail(head, static_cast<const std::byte*>(data), bytes);
  return UCS_OK;
}

// ---- Messages that wait at their sender

ucs_status_t ucx_fabric::on_rts(void* self, const void* head, size_t head_bytes, void* data, size_t,
                                const ucp_am_recv_param_t* params) {
  frame announced;
  // Our senders force UCX's rendezvous for these. Anything else is not ours.
  if (head_bytes != sizeof announced || (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) return UCS_OK;
  std::memcpy(&announced, head, sizeof announced);
  auto& owner = *static_cast<ucx_fabric*>(self);
  if (!owner.is_from(announced.source, params)) return UCS_OK;
  owner.arriving_ = data;
  owner.handler_->on_remote(announced, remote_data(&owner, data));
  // A descriptor that was released inside the callback is freed by UCX.
  return std::exchange(owner.arriving_, nullptr) == nullptr ? UCS_OK : UCS_INPROGRESS;
}

void ucx_fabric::release_descriptor(void* descriptor) noexcept {
  if (descriptor == arriving_) arriving_ = nullptr;
  else ucx_->ucp_am_data_release(worker_, descriptor);
}

remote_data& remote_data::operator=(remote_data&& other) noexcept {
  if (this == &other) return *this;
  reset();
  owner_ = std::exchange(other.owner_, nullptr);
  descriptor_ = std::exchange(other.descriptor_, nullptr);
  return *this;
}

void remote_data::reset() noexcept {
  if (descriptor_ != nullptr) std::exchange(owner_, nullptr)->release_descriptor(std::exchange(descriptor_, nullptr));
}

void ucx_fabric::receive_remote(remote_data data, void* destination, std::size_t bytes, ucx_part& part) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv_am = &ucx_fabric::on_remote_received;
  params.user_data = &part;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  part.is_receive = part.is_final = true;
  part.ucx = ucx_;
  // UCX owns the descriptor from here on, even on failure.
  void* const request =
      ucx_->ucp_am_recv_data_nbx(worker_, std::exchange(data.descriptor_, nullptr), destination, bytes, &params);
  // The request is not stored: the callback that frees it may already have run.
  if (request == nullptr) part.done(part, 0, bytes);
  else if (UCS_PTR_IS_ERR(request)) part.done(part, sending_code(UCS_PTR_STATUS(request)), 0);
}

void ucx_fabric::on_remote_received(void* request, ucs_status_t code, size_t bytes, void* user) {
  auto& part = *static_cast<ucx_part*>(user);
  part.ucx->ucp_request_free(request);
  part.done(part, sending_code(code), code == UCS_OK ? bytes : 0);
}

// ---- Bulk data

void ucx_fabric::send_tagged(int rank, std::uint64_t tag, const void* source, std::size_t bytes, bool is_gpu_memory,
                             ucx_part& part) {
  auto& destination = peers_[static_cast<std::size_t>(rank)];
  if (const auto rc = connect(destination); rc != UCS_OK) return part.done(part, sending_code(rc), 0);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.send = &ucx_fabric::on_tagged_sent;
  params.user_data = &part;
  params.memory_type = is_gpu_memory ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  part.is_receive = false;
  part.ucx = ucx_;
  void* const request = ucx_->ucp_tag_send_nbx(destination.endpoint, source, bytes, tag, &params);
  if (request == nullptr) part.done(part, 0, bytes);
  else if (UCS_PTR_IS_ERR(request)) part.done(part, to_errno(UCS_PTR_STATUS(request)), 0);
  else part.request = request;
}

void ucx_fabric::on_tagged_sent(void* request, ucs_status_t code, void* user) {
  auto& part = *static_cast<ucx_part*>(user);
  part.ucx->ucp_request_free(request);
  part.request = nullptr;
  part.done(part, sending_code(code), 0);
}

void ucx_fabric::receive_tagged(int, std::uint64_t tag, void* destination, std::size_t bytes, bool is_gpu_memory,
                                ucx_part& part) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv = &ucx_fabric::on_tagged_received;
  params.user_data = &part;
  params.memory_type = is_gpu_memory ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
  part.is_receive = true;
  part.ucx = ucx_;
  void* const request = ucx_->ucp_tag_recv_nbx(worker_, destination, bytes, tag, ~0ull, &params);
  if (UCS_PTR_IS_ERR(request)) part.done(part, to_errno(UCS_PTR_STATUS(request)), 0);
  else part.request = request;
}

void ucx_fabric::on_tagged_received(void* request, ucs_status_t code, const ucp_tag_recv_info_t* info, void* user) {
  auto& part = *static_cast<ucx_part*>(user);
  part.ucx->ucp_request_free(request);
  part.request = nullptr;
  part.done(part, to_errno(code), code == UCS_OK ? info->length : 0);
}

void ucx_fabric::cancel_tagged(ucx_part& part) {
  if (part.request != nullptr && part.is_receive && !part.is_final) ucx_->ucp_request_cancel(worker_, part.request);
}

// ---- Closing

void ucx_fabric::close(int rank, bool at_once) {
  auto& remote = peers_[static_cast<std::size_t>(rank)];
  remote.is_closed = true;
  if (remote.endpoint == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = at_once ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  void* const request = ucx_->ucp_ep_close_nbx(std::exchange(remote.endpoint, nullptr), &params);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) closing_.push_back(request);
}

void ucx_fabric::reap_closed() {
  std::erase_if(closing_, [&](void* request) {
    if (ucx_->ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucx_->ucp_request_free(request);
    return true;
  });
}

}  // namespace pl::messaging
