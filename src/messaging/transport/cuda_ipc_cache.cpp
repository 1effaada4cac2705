// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/cuda_ipc_cache.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace pl::messaging {

cuda_ipc_cache::~cuda_ipc_cache() {
  streams_.clear();  // waits for their copies
  for (const auto& known : open_) close(known.second);
}

result<cu::ipc_mem_handle_t> cuda_ipc_cache::export_handle(const cu::pointer_info& info) {
  if (const auto known = exported_.find(info.buffer_id); known != exported_.end()) return known->second;
  if (cuda_->cuIpcGetMemHandle == nullptr) return failure{ENOTSUP, "this libcuda has no cuIpcGetMemHandle"};
  auto use = cu::context_scope::enter(*cuda_, info.device_ordinal, info.context);
  if (!use) return std::move(use).error();
  cu::ipc_mem_handle_t handle{};
  if (const auto rc = cuda_->cuIpcGetMemHandle(&handle, info.allocation.begin); rc != cu::error_code::success)
    return failure{ENOTSUP, cu::make_error(*cuda_, rc, "exporting device memory to other processes").message};
  if (exported_.size() == kMaxExported) exported_.clear();
  exported_[info.buffer_id] = handle;
  return handle;
}

result<cuda_ipc_cache::opened*> cuda_ipc_cache::open(int rank, std::uint64_t buffer_id, const cu::ipc_mem_handle_t& handle,
                                                     int device_ordinal) {
  if (const auto known = open_.find({rank, buffer_id}); known != open_.end()) {
    known->second.last_use = ++uses_;
    return &known->second;
  }
  if (cuda_->cuIpcOpenMemHandle_v2 == nullptr) return failure{ENOTSUP, "this libcuda has no cuIpcOpenMemHandle"};
  if (open_.size() >= kMaxOpen) make_room();
  const auto context = context_on(device_ordinal);
  if (!context) return context.error();
  auto use = cu::context_scope::enter(*cuda_, device_ordinal, context->handle);
  if (!use) return std::move(use).error();
  auto streams = streams_of(*context);
  if (!streams) return std::move(streams).error();
  constexpr unsigned kLazyPeerAccess = 1;
  opened made{0, *streams, device_ordinal, 0, ++uses_};
  if (const auto rc = cuda_->cuIpcOpenMemHandle_v2(&made.base, handle, kLazyPeerAccess); rc != cu::error_code::success)
    return failure{ENOTSUP, cu::make_error(*cuda_, rc, format("opening device memory of rank %d", rank)).message};
  return &(open_[{rank, buffer_id}] = made);
}

result<copy_streams*> cuda_ipc_cache::streams_on(int device_ordinal) {
  const auto context = context_on(device_ordinal);
  if (!context) return context.error();
  return streams_of(*context);
}

// The thread's current context if it is on this device; otherwise the primary one, which is then retained.
result<copy::gpu_context> cuda_ipc_cache::context_on(int device_ordinal) const {
  cu::context_t current = nullptr;
  cu::device_t device = -1;
  const bool is_here = cuda_->cuCtxGetCurrent(&current) == cu::error_code::success && current != nullptr &&
                       cuda_->cuCtxGetDevice(&device) == cu::error_code::success && device == device_ordinal;
  return copy::find_context(*cuda_, device_ordinal, is_here ? current : nullptr);
}

result<copy_streams*> cuda_ipc_cache::streams_of(const copy::gpu_context& context) {
  // Drivers before CUDA 12 have no context id: the handle serves while the context lives.
  const auto context_id = context.id != 0 ? context.id : reinterpret_cast<unsigned long long>(context.handle);
  auto& streams = streams_[context_id];
  if (streams == nullptr) {
    auto made = copy_streams::open(context);
    if (!made) return std::move(made).error();
    streams = *std::move(made);
  }
  return streams.get();
}

void cuda_ipc_cache::make_room() {
  auto oldest = open_.end();
  for (auto candidate = open_.begin(); candidate != open_.end(); ++candidate)
    if (candidate->second.holders == 0 && (oldest == open_.end() || candidate->second.last_use < oldest->second.last_use))
      oldest = candidate;
  if (oldest == open_.end()) return;
  close(oldest->second);
  open_.erase(oldest);
}

void cuda_ipc_cache::forget(int rank) {
  std::erase_if(open_, [&](const auto& known) {
    if (known.first.first != rank || known.second.holders != 0) return false;
    close(known.second);
    return true;
  });
}

void cuda_ipc_cache::close(const opened& entry) noexcept {
  if (auto use = cu::context_scope::enter(*cuda_, entry.device_ordinal, nullptr)) cuda_->cuIpcCloseMemHandle(entry.base);
}

}  // namespace pl::messaging
