// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/ucx_transport.hpp"

#include <cstring>
#include <exception>
#include <optional>

#include "base/text.hpp"
#include "messaging/messenger.hpp"
#include "tools/common/tool.hpp"
#include "tools/p2p/one_sided_calls.hpp"
#include "ucx/ucx_table.hpp"

namespace pl::p2p {
namespace {

using tools::tool_failure;

// UCX's own puts, gets and atomics, on memory that it allocates.
class ucx_one_sided : public one_sided_calls {
 public:
  ucx_one_sided(const ucx::ucx_table& ucx, ucp_context_h context, ucp_worker_h worker,
                const std::vector<ucp_ep_h>& endpoints, messaging::bootstrap& group)
      : ucx_(ucx), context_(context), worker_(worker), endpoints_(endpoints), bootstrap_(group) {}

  void* open_window(std::size_t bytes) override {
    ucp_mem_map_params_t asked{};
    asked.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    asked.length = bytes;
    asked.flags = UCP_MEM_MAP_ALLOCATE;
    check(ucx_.ucp_mem_map(context_, &asked, &memory_), "ucp_mem_map");
    ucp_mem_attr_t made{};
    made.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    check(ucx_.ucp_mem_query(memory_, &made), "ucp_mem_query");
    std::memset(made.address, 0, bytes);
    exchange_keys(made.address);
    return made.address;
  }
  void close_window() override {
    for (const auto& one : windows_) ucx_.ucp_rkey_destroy(one.key);
    windows_.clear();
    tools::must(bootstrap_.barrier());
    check(ucx_.ucp_mem_unmap(context_, memory_), "ucp_mem_unmap");
  }
  void put(const void* data, std::size_t bytes, memory_kind, int peer, std::size_t offset) override {
    const auto& target = window_of(peer);
    ucp_request_param_t plain{};
    begun(ucx_.ucp_put_nbx(endpoint_of(peer), data, bytes, target.address + offset, target.key, &plain), "ucp_put_nbx");
  }
  void get(void* data, std::size_t bytes, memory_kind, int peer, std::size_t offset) override {
    const auto& target = window_of(peer);
    ucp_request_param_t plain{};
    begun(ucx_.ucp_get_nbx(endpoint_of(peer), data, bytes, target.address + offset, target.key, &plain), "ucp_get_nbx");
  }
  void flush(int peer) override {
    ucp_request_param_t plain{};
    begun(ucx_.ucp_ep_flush_nbx(endpoint_of(peer), &plain), "ucp_ep_flush_nbx");
    for (void* const one : pending_) finish(one);
    pending_.clear();
  }
  std::uint64_t fetch_add(int peer, std::size_t offset, std::uint64_t operand) override {
    return atomic(UCP_ATOMIC_OP_ADD, peer, offset, &operand, 0);
  }
  // UCX takes the new value where the old one is returned, and the value to compare as its operand.
  std::uint64_t compare_swap(int peer, std::size_t offset, std::uint64_t compare, std::uint64_t operand) override {
    return atomic(UCP_ATOMIC_OP_CSWAP, peer, offset, &compare, operand);
  }

 private:
  struct remote_window {
    std::uint64_t address = 0;
    ucp_rkey_h key = nullptr;
  };
  const remote_window& window_of(int peer) const { return windows_[static_cast<std::size_t>(peer)]; }
  ucp_ep_h endpoint_of(int peer) const { return endpoints_[static_cast<std::size_t>(peer)]; }
  void check(ucs_status_t code, const char* action) const {
    if (code != UCS_OK) throw tool_failure(format("%s failed: %s", action, ucx_.ucs_status_string(code)));
  }
  void exchange_keys(void* address) {
    void* packed = nullptr;
    std::size_t length = 0;
    check(ucx_.ucp_rkey_pack(context_, memory_, &packed, &length), "ucp_rkey_pack");
    messaging::byte_string mine(sizeof address + length);
    std::memcpy(mine.data(), &address, sizeof address);
    std::memcpy(mine.data() + sizeof address, packed, length);
    ucx_.ucp_rkey_buffer_release(packed);
    const auto all = tools::must(bootstrap_.all_gather(mine));
    for (std::size_t peer = 0; peer < all.size(); ++peer) {
      remote_window one;
      std::memcpy(&one.address, all[peer].data(), sizeof one.address);
      check(ucx_.ucp_ep_rkey_unpack(endpoints_[peer], all[peer].data() + sizeof one.address, &one.key),
            "ucp_ep_rkey_unpack");
      windows_.push_back(one);
    }
  }
  std::uint64_t atomic(ucp_atomic_op_t op, int peer, std::size_t offset, const std::uint64_t* operand, std::uint64_t reply) {
    const auto& target = window_of(peer);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER;
    param.datatype = ucp_dt_make_contig(sizeof reply);
    param.reply_buffer = &reply;
    void* const begun_now =
        ucx_.ucp_atomic_op_nbx(endpoint_of(peer), op, operand, 1, target.address + offset, target.key, &param);
    if (UCS_PTR_IS_ERR(begun_now)) check(UCS_PTR_STATUS(begun_now), "ucp_atomic_op_nbx");
    finish(begun_now);
    return reply;
  }
  void begun(void* handle, const char* action) {
    if (UCS_PTR_IS_ERR(handle)) check(UCS_PTR_STATUS(handle), action);
    if (handle != nullptr) pending_.push_back(handle);
  }
  void finish(void* handle) {
    if (handle == nullptr) return;
    ucs_status_t code;
    while ((code = ucx_.ucp_request_check_status(handle)) == UCS_INPROGRESS) ucx_.ucp_worker_progress(worker_);
    ucx_.ucp_request_free(handle);
    check(code, "one-sided operation");
  }

  const ucx::ucx_table& ucx_;
  ucp_context_h context_;
  ucp_worker_h worker_;
  const std::vector<ucp_ep_h>& endpoints_;
  messaging::bootstrap& bootstrap_;
  ucp_mem_h memory_ = nullptr;
  std::vector<remote_window> windows_;
  std::vector<void*> pending_;
};

class ucx_transport : public transport {
 public:
  ucx_transport(const ucx::ucx_table& ucx, bool device_memory, messaging::bootstrap& group, bool has_windows)
      : ucx_(ucx), rank_(group.rank()), size_(group.size()), bootstrap_(group) {
    make_context(has_windows);
    if (device_memory) require_cuda();
    make_worker();
    connect();
  }
  ~ucx_transport() override {
    if (std::uncaught_exceptions() != 0) return;  // the other ranks may be gone, and the process ends
    // All ranks close before any destroys its worker: closing to a vanished peer would be an error.
    for (const ucp_ep_h endpoint : endpoints_) close(endpoint);
    (void)bootstrap_.barrier();
    if (worker_ != nullptr) ucx_.ucp_worker_destroy(worker_);
    if (context_ != nullptr) ucx_.ucp_cleanup(context_);
  }
  ucx_transport(const ucx_transport&) = delete;
  ucx_transport& operator=(const ucx_transport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string library() const override { return format("UCX %u.%u.%u", ucx_.major, ucx_.minor, ucx_.release); }
  one_sided_calls& one_sided() override {
    if (!one_sided_) one_sided_.emplace(ucx_, context_, worker_, endpoints_, bootstrap_);
    return *one_sided_;
  }
  std::string plan() const override { return "UCX prints its protocols with UCX_PROTO_INFO=y\n"; }

  request isend(const void* data, std::size_t size_bytes, memory_kind, int peer, int tag) override {
    ucp_request_param_t plain{};
    return started(
        ucx_.ucp_tag_send_nbx(endpoints_[static_cast<std::size_t>(peer)], data, size_bytes, wire_tag(rank_, tag), &plain),
        "ucp_tag_send_nbx");
  }
  request irecv(void* data, std::size_t size_bytes, memory_kind, int peer, int tag) override {
    ucp_request_param_t plain{};
    return started(ucx_.ucp_tag_recv_nbx(worker_, data, size_bytes, wire_tag(peer, tag), kWholeTag, &plain),
                   "ucp_tag_recv_nbx");
  }
  void waitall(std::span<request> pending) override {
    for (const auto& one : pending) finish(reinterpret_cast<void*>(one.word));
  }

  void barrier() override { gather_by_messages(*this, 0); }
  std::vector<double> all_gather(double mine) override { return gather_by_messages(*this, mine); }

 private:
  static constexpr ucp_tag_t kWholeTag = ~ucp_tag_t{0};
  static ucp_tag_t wire_tag(int sender, int tag) {
    return static_cast<ucp_tag_t>(sender) << 32 | static_cast<unsigned>(tag);
  }

  void check(ucs_status_t code, const char* action) const {
    if (code != UCS_OK) throw tool_failure(format("%s failed: %s", action, ucx_.ucs_status_string(code)));
  }

  void make_context(bool has_windows) {
    ucp_config_t* config = nullptr;
    check(ucx_.ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
    params.features = UCP_FEATURE_TAG;
    if (has_windows) params.features |= UCP_FEATURE_RMA | UCP_FEATURE_AMO64;
    params.estimated_num_eps = static_cast<std::size_t>(size_);
    const auto code = ucx_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
    ucx_.ucp_config_release(config);
    check(code, "ucp_init");
  }
  void require_cuda() const {
    ucp_context_attr_t attributes{};
    attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
    check(ucx_.ucp_context_query(context_, &attributes), "ucp_context_query");
    if ((attributes.memory_types & (std::uint64_t{1} << UCS_MEMORY_TYPE_CUDA)) == 0)
      throw tool_failure(
          format("this UCX (%s) has no CUDA support: use one that has (PyPI: libucx-cu13, in "
                 "PEERLANE_UCX_LIBRARY) or add --stage",
                 library().c_str()));
  }
  void make_worker() {
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucx_.ucp_worker_create(context_, &params, &worker_), "ucp_worker_create");
  }
  void connect() {
    ucp_address_t* address = nullptr;
    std::size_t length = 0;
    check(ucx_.ucp_worker_get_address(worker_, &address, &length), "ucp_worker_get_address");
    auto all = bootstrap_.all_gather({reinterpret_cast<const std::byte*>(address), length});
    ucx_.ucp_worker_release_address(worker_, address);
    for (const auto& one : tools::must(std::move(all))) {
      ucp_ep_params_t params{};
      params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
      params.address = reinterpret_cast<const ucp_address_t*>(one.data());
      ucp_ep_h endpoint = nullptr;
      check(ucx_.ucp_ep_create(worker_, &params, &endpoint), "ucp_ep_create");
      endpoints_.push_back(endpoint);
    }
  }
  void close(ucp_ep_h endpoint) {
    ucp_request_param_t flush{};
    void* closing = ucx_.ucp_ep_close_nbx(endpoint, &flush);
    if (closing == nullptr || UCS_PTR_IS_ERR(closing)) return;
    while (ucx_.ucp_request_check_status(closing) == UCS_INPROGRESS) ucx_.ucp_worker_progress(worker_);
    ucx_.ucp_request_free(closing);
  }

  request started(void* handle, const char* action) const {
    if (UCS_PTR_IS_ERR(handle)) check(UCS_PTR_STATUS(handle), action);
    return {reinterpret_cast<std::uintptr_t>(handle)};
  }
  void finish(void* handle) {
    if (handle == nullptr) return;  // ended at once
    ucs_status_t code;
    while ((code = ucx_.ucp_request_check_status(handle)) == UCS_INPROGRESS) ucx_.ucp_worker_progress(worker_);
    ucx_.ucp_request_free(handle);
    check(code, "message");
  }

  const ucx::ucx_table& ucx_;
  int rank_, size_;
  messaging::bootstrap& bootstrap_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::vector<ucp_ep_h> endpoints_;
  std::optional<ucx_one_sided> one_sided_;
};

}  // namespace

std::unique_ptr<transport> open_ucx_transport(bool device_memory, messaging::bootstrap& group, bool has_windows) {
  const auto library = messaging::messenger_options::from_environment().ucx_library;
  return std::make_unique<ucx_transport>(*tools::must(ucx::open_ucx(library)), device_memory, group, has_windows);
}

}  // namespace pl::p2p
