// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/nccl_library.hpp"

#include <dlfcn.h>

#include <cstring>
#include <span>
#include <string>

#include "base/env.hpp"
#include "base/text.hpp"
#include "tools/common/tool.hpp"

namespace pl::p2p {
namespace {

using tools::tool_failure;

constexpr int kInvalidUsage = 5;  // ncclResult_t

tool_failure not_there(const char* reason) {
  return tool_failure(
      format("NCCL cannot be used: %s. Install it (PyPI: nvidia-nccl-cu13; PyTorch for GPUs brings one in "
             "nvidia/nccl/lib), or name its libnccl.so.2 in PEERLANE_NCCL_LIBRARY",
             reason));
}

template <class Function>
void resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw not_there(format("the library has no %s: 2.7 or later is needed", name).c_str());
}

}  // namespace

nccl_table load_nccl(bool has_collectives) {
  const std::string named = env_read("PEERLANE_NCCL_LIBRARY").text;
  void* library = dlopen(named.empty() ? "libnccl.so.2" : named.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw not_there(dlerror());
  nccl_table out{};
  resolve(library, "ncclGetVersion", out.GetVersion);
  resolve(library, "ncclGetUniqueId", out.GetUniqueId);
  resolve(library, "ncclCommInitRank", out.CommInitRank);
  resolve(library, "ncclCommDestroy", out.CommDestroy);
  resolve(library, "ncclCommGetAsyncError", out.CommGetAsyncError);
  resolve(library, "ncclGroupStart", out.GroupStart);
  resolve(library, "ncclGroupEnd", out.GroupEnd);
  resolve(library, "ncclSend", out.Send);
  resolve(library, "ncclRecv", out.Recv);
  resolve(library, "ncclGetErrorString", out.GetErrorString);
  if (has_collectives) {
    resolve(library, "ncclAllReduce", out.AllReduce);
    resolve(library, "ncclReduceScatter", out.ReduceScatter);
    resolve(library, "ncclAllGather", out.AllGather);
  }
  return out;
}

void nccl_table::check(int code, const char* action) const {
  if (code == 0) return;
  throw tool_failure(format("%s failed: %s%s", action, GetErrorString(code),
                            code == kInvalidUsage ? " (NCCL needs a separate GPU for each process)" : ""));
}

nccl_id agree_on_nccl_id(const nccl_table& nccl, messaging::bootstrap& group) {
  nccl_id id{};
  if (group.rank() == 0) nccl.check(nccl.GetUniqueId(&id), "ncclGetUniqueId");
  const auto all = tools::must(group.all_gather(std::as_bytes(std::span(&id, 1))));
  std::memcpy(&id, all[0].data(), sizeof id);
  return id;
}

}  // namespace pl::p2p
