// SPDX-License-Identifier: Apache-2.0
#include "ipc_cache.hpp"

#include <algorithm>

#include "text.hpp"

namespace pl::link {

ipc_cache::~ipc_cache() {
  for (const auto& known : open_) close(known.second);
}

result<cu::ipc_mem_handle_t> ipc_cache::export_handle(const cu::pointer_info& info) {
  if (const auto known = exported_.find(info.buffer_id); known != exported_.end()) return known->second;
  if (cuda_->cuIpcGetMemHandle == nullptr) return failure{ENOTSUP, "this libcuda has no cuIpcGetMemHandle"};
  auto use = cu::context_scope::enter(*cuda_, info.device_ordinal, info.context);
  if (!use) return std::move(use).error();
  cu::ipc_mem_handle_t handle{};
  if (const auto rc = cuda_->cuIpcGetMemHandle(&handle, info.allocation.begin); rc != cu::error_code::success)
    return failure{ENOTSUP, cu::make_error(*cuda_, rc, "exporting device memory to other processes").message};
  if (exported_.size() == kMostExported) exported_.clear();
  exported_[info.buffer_id] = handle;
  return handle;
}

result<std::uint64_t> ipc_cache::open(int rank, std::uint64_t buffer_id, const cu::ipc_mem_handle_t& handle,
                                      int device_ordinal) {
  if (const auto known = open_.find({rank, buffer_id}); known != open_.end()) {
    known->second.last_use = ++uses_;
    return known->second.base;
  }
  if (cuda_->cuIpcOpenMemHandle_v2 == nullptr) return failure{ENOTSUP, "this libcuda has no cuIpcOpenMemHandle"};
  if (open_.size() >= kMostOpen) make_room();
  auto use = cu::context_scope::enter(*cuda_, device_ordinal, nullptr);
  if (!use) return std::move(use).error();
  constexpr unsigned kLazyPeerAccess = 1;
  entry made;
  if (const auto rc = cuda_->cuIpcOpenMemHandle_v2(&made.base, handle, kLazyPeerAccess); rc != cu::error_code::success)
    return failure{ENOTSUP, cu::make_error(*cuda_, rc, format("opening device memory of rank %d", rank)).message};
  made.device_ordinal = device_ordinal;
  made.last_use = ++uses_;
  open_[{rank, buffer_id}] = made;
  return made.base;
}

void ipc_cache::make_room() {
  auto oldest = open_.end();
  for (auto at = open_.begin(); at != open_.end(); ++at)
    if (at->second.holders == 0 && (oldest == open_.end() || at->second.last_use < oldest->second.last_use)) oldest = at;
  if (oldest == open_.end()) return;
  close(oldest->second);
  open_.erase(oldest);
}

void ipc_cache::count(std::uint64_t base, int by) noexcept {
  for (auto& known : open_)
    if (known.second.base == base) known.second.holders += by;
}

void ipc_cache::forget(int rank) {
  std::erase_if(open_, [&](const auto& known) {
    if (known.first.first != rank || known.second.holders != 0) return false;
    close(known.second);
    return true;
  });
}

void ipc_cache::close(const entry& what) noexcept {
  if (auto use = cu::context_scope::enter(*cuda_, what.device_ordinal, nullptr)) cuda_->cuIpcCloseMemHandle(what.base);
}

}  // namespace pl::link
