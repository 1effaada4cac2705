// SPDX-License-Identifier: Apache-2.0
#include "triggered/remote_memory.hpp"

#include <sys/random.h>

#include <string>

#include "cuda/pointer.hpp"
#include "os/fork_guard.hpp"

namespace pl::triggered {
namespace {

process_token random_token() {
  process_token out;
  if (getrandom(&out, sizeof out, 0) == static_cast<ssize_t>(sizeof out)) return out;
  out.low = reinterpret_cast<std::uint64_t>(&out);  // no entropy source: the address and the epoch must do
  out.high = claim_process_epoch();
  return out;
}

}  // namespace

process_token process_token::current() {
  static std::mutex mutex;
  static std::uint32_t epoch = 0;
  static process_token token;
  const std::lock_guard lock(mutex);
  if (const auto now = claim_process_epoch(); now != epoch) {
    token = random_token();
    epoch = now;
  }
  return token;
}

result<memory_key> export_memory(const copy::gpu_context& context, cu::device_ptr pointer, std::size_t bytes) {
  const auto& cuda = *context.cuda;
  const auto info = cu::inspect_pointer(cuda, pointer);
  if (!info) return info.error();
  const auto& all = info->allocation;
  if (bytes == 0 || pointer < all.begin || bytes > all.size_bytes - (pointer - all.begin))
    return failure{EINVAL, "the " + std::to_string(bytes) + " bytes to expose extend beyond their allocation of " +
                               std::to_string(all.size_bytes) + " bytes"};
  memory_key out;
  out.owner = process_token::current();
  out.address = pointer;
  out.bytes = bytes;
  out.offset = pointer - all.begin;
  out.buffer_id = info->buffer_id;
  out.device_ordinal = info->device_ordinal;
  if (const auto rc = cuda.cuDeviceGetUuid_v2(&out.device, info->device_ordinal); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "cuDeviceGetUuid");
  auto use = copy::context_use::enter(context);
  if (!use) return use.error();
  if (cuda.cuIpcGetMemHandle(&out.handle, all.begin) == cu::error_code::success) out.is_exported = 1;
  return out;
}

memory_importer::~memory_importer() {
  if (open_.empty() || !context_.is_alive()) return;
  auto use = copy::context_use::enter(context_);
  if (!use) return;
  for (const auto& [allocation, base] : open_) static_cast<void>(context_.cuda->cuIpcCloseMemHandle(base));
}

result<cu::device_ptr> memory_importer::open(const memory_key& key) {
  if (key.owner == process_token::current()) return open_here(key);
  if (key.is_exported == 0)
    return failure{ENOTSUP,
                   "the peer's memory cannot be exported by CUDA IPC: it comes from cuMemCreate or a pool; use cuMemAlloc"};
  const std::lock_guard lock(mutex_);
  return open_exported(key);
}

void memory_importer::close(const memory_key& key) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(place{key.owner.low, key.owner.high, key.buffer_id});
  if (found == open_.end()) return;
  if (auto use = copy::context_use::enter(context_)) static_cast<void>(context_.cuda->cuIpcCloseMemHandle(found->second));
  open_.erase(found);
}

// Another context of this process: the same addresses, once the GPUs may reach each other.
result<cu::device_ptr> memory_importer::open_here(const memory_key& key) {
  if (key.device_ordinal == context_.device_ordinal) return key.address;
  const auto& cuda = *context_.cuda;
  int can = 0;
  if (const auto rc = cuda.cuDeviceCanAccessPeer(&can, context_.device_ordinal, key.device_ordinal);
      rc != cu::error_code::success || can == 0)
    return failure{ENOTSUP, "GPU " + std::to_string(context_.device_ordinal) + " cannot reach the memory of GPU " +
                                std::to_string(key.device_ordinal) + " (cuDeviceCanAccessPeer)"};
  const auto theirs = copy::find_context(cuda, key.device_ordinal, nullptr);
  if (!theirs) return theirs.error();
  auto use = copy::context_use::enter(context_);
  if (!use) return use.error();
  if (const auto rc = cuda.cuCtxEnablePeerAccess(theirs->handle, 0);
      rc != cu::error_code::success && rc != cu::error_code::peer_access_already_enabled)
    return cu::make_error(cuda, rc, "peer access to GPU " + std::to_string(key.device_ordinal));
  return key.address;
}

result<cu::device_ptr> memory_importer::open_exported(const memory_key& key) {
  constexpr unsigned kLazyPeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
  const place allocation{key.owner.low, key.owner.high, key.buffer_id};
  if (const auto found = open_.find(allocation); found != open_.end()) return found->second + key.offset;
  auto use = copy::context_use::enter(context_);
  if (!use) return use.error();
  cu::device_ptr base = 0;
  const auto rc = context_.cuda->cuIpcOpenMemHandle_v2(&base, key.handle, kLazyPeerAccess);
  if (rc != cu::error_code::success) {
    auto reason = cu::make_error(*context_.cuda, rc, "opening the peer's GPU memory (cuIpcOpenMemHandle)");
    reason.code = ENOTSUP;
    return reason;
  }
  open_.emplace(allocation, base);
  return base + key.offset;
}

}  // namespace pl::triggered
