// SPDX-License-Identifier: Apache-2.0
#include "ucx/ucx_table.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include "base/env.hpp"
#include "base/load_library.hpp"
#include "base/text.hpp"
#include "os/close_on_exec.hpp"

namespace pl::ucx {
namespace {

constexpr unsigned kMajor = 1, kOldestMinor = 13;

failure not_there(const char* reason) {
  return failure{ENOSYS,
                 format("UCX cannot be used: %s. Install it (Debian: apt-get install libucx0; PyPI: libucx-cu13), or "
                        "name its libucp.so.0 in PEERLANE_UCX_LIBRARY",
                        reason)};
}

result<std::unique_ptr<ucx_table>> load(const std::string& path) {
  // Local: an application may have another UCX of its own (an MPI's), whose symbols must not mix with these.
  const auto descriptors = open_descriptors();
  const auto loaded = load_library(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  close_on_exec_since(descriptors);
  if (!loaded && loaded.code() != ENOENT) return loaded.error();
  if (!loaded) return not_there(loaded.error().message.c_str());
  void* const library = *loaded;
  auto table = std::make_unique<ucx_table>();
  const char* missing = nullptr;
#define PL_UCX_LOAD(name)                                                       \
  table->name = reinterpret_cast<decltype(table->name)>(dlsym(library, #name)); \
  if (table->name == nullptr) missing = #name;
  PL_UCX_FUNCTIONS(PL_UCX_LOAD)
#undef PL_UCX_LOAD
  if (missing != nullptr) return not_there(format("%s lacks %s: 1.13 or later is needed", path.c_str(), missing).c_str());
  table->ucp_get_version(&table->major, &table->minor, &table->release);
  if (table->major != kMajor || table->minor < kOldestMinor)
    return not_there(format("%s is version %u.%u.%u, and 1.13 or a later 1.x is needed", path.c_str(), table->major,
                            table->minor, table->release)
                         .c_str());
  return table;
}

// Whether the user's list of transports leaves TCP among them.
bool may_use_tcp() {
  const auto names = env_read("UCX_TLS");
  const bool has_name = names.text.find("tcp") != std::string::npos;
  return !names.is_set || names.text == "all" || has_name != names.text.starts_with('^');
}

}  // namespace

result<const ucx_table*> open_ucx(const std::string& path) {
  static std::mutex mutex;
  static auto* const opened = new std::map<std::string, std::unique_ptr<ucx_table>>;
  const std::string name = path.empty() ? "libucp.so.0" : path;
  const std::lock_guard lock(mutex);
  auto& entry = (*opened)[name];
  if (entry == nullptr) {
    auto loaded = load(name);
    if (!loaded) return std::move(loaded).error();
    entry = *std::move(loaded);
  }
  return static_cast<const ucx_table*>(entry.get());
}

int to_errno(ucs_status_t code) noexcept {
  switch (code) {
    case UCS_OK:
      return 0;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
      return ENOMEM;
    case UCS_ERR_INVALID_PARAM:
      return EINVAL;
    case UCS_ERR_MESSAGE_TRUNCATED:
      return EMSGSIZE;
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_IO_ERROR:  // also a TCP connection that broke
    case UCS_ERR_CANCELED:  // by UCX, when it closes the connection to a dead peer: what we cancel ourselves nobody waits
                            // for
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
      return ECONNRESET;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
      return ENOTSUP;
    default:
      return EIO;
  }
}

failure failed(const ucx_table& ucx, ucs_status_t code, const char* operation) {
  return failure{to_errno(code),
                 format("UCX %u.%u: %s failed: %s", ucx.major, ucx.minor, operation, ucx.ucs_status_string(code))};
}

bool has_cuda_module(const ucx_table& ucx) {
  Dl_info library{};
  if (dladdr(reinterpret_cast<const void*>(ucx.ucp_init_version), &library) == 0 || library.dli_fname == nullptr)
    return false;
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::path(library.dli_fname).parent_path() / "ucx" / "libuct_cuda.so.0",
                                 ignored);
}

void avoid_faulty_protocols(const ucx_table& ucx, ucp_config_t* config) {
  // The protocols that 1.16 made the default abort the process where a peer ends in the middle of a rendezvous: an assertion
  // on the request's memory handle fails (openucx/ucx issue 9528 shows the same one). The older protocols, the default
  // of 1.13, let the request fail. Death.* and ucx_streams.* see it.
  constexpr unsigned kFirstFaulty = 16, kSeenWell = 22;
  const bool may_abort = ucx.minor >= kFirstFaulty && ucx.minor < kSeenWell;
  if (may_abort && !env_read("UCX_PROTO_ENABLE").is_set) (void)ucx.ucp_config_modify(config, "PROTO_ENABLE", "n");
}

std::size_t tune_for_tcp(const ucx_table& ucx, ucp_config_t* config, bool has_rdma, tcp_sends sends) {
  constexpr std::size_t kKiB = 1024, kHeads = 4 * kKiB;
  constexpr unsigned kSeenWell = 22;
  const bool is_old = ucx.minor < kSeenWell;
  const auto set = [&](const char* name, const char* value) { (void)ucx.ucp_config_modify(config, name, value); };
  // TCP's packets of 8 KiB cost half of its rate. 1.13 takes a transport's settings without the transport's name, 1.22 with
  // it; both warn of those that no transport in use has.
  const auto set_segments = [&](std::size_t sent, std::size_t received) {
    // UCX opens only where it takes as large ones as it sends.
    const bool can_receive = !env_read("UCX_TCP_RX_SEG_SIZE").is_set;
    const bool is_ours = can_receive && !env_read("UCX_TCP_TX_SEG_SIZE").is_set;
    if (!may_use_tcp()) return is_ours;
    if (can_receive) set(is_old ? "RX_SEG_SIZE" : "TCP_RX_SEG_SIZE", format("%zu", received).c_str());
    if (is_ours) set(is_old ? "TX_SEG_SIZE" : "TCP_TX_SEG_SIZE", format("%zu", sent).c_str());
    return is_ours;
  };
  if (!is_old) return set_segments(256 * kKiB, 256 * kKiB), 0;
  // A peer's packets must fit, however it is set: UCX 1.13 aborts where one does not.
  constexpr std::size_t kLargest = 512 * kKiB;
  if (has_rdma) return set_segments(256 * kKiB, kLargest), 0;
  // A send without a copy that has not left when its peer dies ends twice in UCX 1.13, which aborts the process. So it
  // copies; only what fits one packet it gives to the socket without a copy, keeps what the socket does not take, and is
  // done. Copies do best while they fit a cache.
  const bool is_users_way = env_read("UCX_ZCOPY_THRESH").is_set;
  if (!is_users_way) set("ZCOPY_THRESH", "inf");
  const bool is_ours = set_segments(sends == tcp_sends::in_parts ? kLargest : 64 * kKiB, kLargest);
  return is_ours && !is_users_way && sends == tcp_sends::in_parts ? kLargest - kHeads : 0;
}

}  // namespace pl::ucx
