// SPDX-License-Identifier: Apache-2.0
// cuMemAlloc and cuMemFree. Sizes below 1 MiB are packed into 2 MiB blocks (several allocations share pages, as on a
// real GPU); larger ones are objects of their own.
//
// cuMemFree waits for the context's work first, as the real one does: code that deadlocks there deadlocks here.
#include "sim/memory.hpp"

#include "sim/capture.hpp"
#include "sim/heap.hpp"

namespace pl::sim {
namespace {

constexpr std::size_t kPackedBelowBytes = 1u << 20;

heap& small_heap(int device_ordinal) {
  static auto* const heaps = [] {
    auto* made = new std::vector<std::unique_ptr<heap>>;
    for (const auto& d : devices()) made->push_back(std::make_unique<heap>(d.ordinal, kGpuPageBytes));
    return made;
  }();
  return *(*heaps)[static_cast<std::size_t>(device_ordinal)];
}

result_t allocate_device(const context& ctx, std::size_t bytes, device_ptr& out) {
  const int ordinal = ctx.gpu->ordinal;
  if (bytes > ctx.gpu->memory_bytes) return code::out_of_memory;  // also keeps the rounding below from wrapping
  result_t rc = code::success;
  if (bytes < kPackedBelowBytes) rc = small_heap(ordinal).allocate(bytes, out);
  else out = map_new_object(ordinal, round_up(bytes, kGpuPageBytes), rc);
  if (rc != code::success) return rc;
  auto made = std::make_shared<allocation>();
  made->base = out;
  made->bytes = bytes;
  made->device_ordinal = ordinal;
  made->context = ctx.handle;
  address_space::instance().add(made);
  return code::success;
}

}  // namespace

bool release_allocation(const allocation_ref& doomed) {
  if (address_space::instance().remove(doomed->base) != doomed) return false;
  settle_all_stores();
  switch (doomed->kind) {
    case memory_kind::device:
      if (doomed->bytes < kPackedBelowBytes) small_heap(doomed->device_ordinal).free(doomed->base, doomed->bytes, 0);
      else unmap_object(doomed->base, round_up(doomed->bytes, kGpuPageBytes));
      break;
    case memory_kind::pool:
      release_pool_memory(*doomed);
      break;
    case memory_kind::ipc:
      release_ipc_memory(*doomed);
      break;
    case memory_kind::managed:
    case memory_kind::host:
    case memory_kind::registered:
      release_host_memory(*doomed);
      break;
    case memory_kind::vmm:              // the mapping is not the allocation's: cuMemUnmap does both
    case memory_kind::module_variable:  // belongs to the module's image
      break;
  }
  return true;
}

void release_context_memory(context_t handle) {
  for (const auto& owned : address_space::instance().all_of_context(handle))
    if (owned->kind != memory_kind::vmm && owned->kind != memory_kind::pool) release_allocation(owned);
}

PL_SIM_API cuMemAlloc_v2(device_ptr* out, std::size_t bytes) {
  const auto e = enter_unsafe();
  if (!e) return e.rc;
  if (const auto rc = injected_failure("cuMemAlloc_v2"); rc != code::success) return rc;
  if (out == nullptr || bytes == 0) return code::invalid_value;
  device_ptr made = 0;
  const result_t rc = allocate_device(*e.ctx, bytes, made);
  if (rc == code::success) *out = made;
  return rc;
}

PL_SIM_API cuMemAllocPitch_v2(device_ptr* out, std::size_t* pitch, std::size_t width, std::size_t height, unsigned element) {
  const auto e = enter_unsafe();
  if (!e) return e.rc;
  if (out == nullptr || pitch == nullptr || width == 0 || height == 0) return code::invalid_value;
  if (element != 4 && element != 8 && element != 16) return code::invalid_value;
  const std::size_t row = round_up(width, kSmallStep);
  if (row < width || row > e.ctx->gpu->memory_bytes / height) return code::out_of_memory;
  device_ptr made = 0;
  const result_t rc = allocate_device(*e.ctx, row * height, made);
  if (rc != code::success) return rc;
  *out = made;
  *pitch = row;
  return code::success;
}

PL_SIM_API cuMemFree_v2(device_ptr pointer) {
  if (const auto rc = enter_unsafe_anywhere(); rc != code::success) return rc;
  if (pointer == 0) return code::success;
  const auto found = address_space::instance().find_base(pointer);
  if (found == nullptr || found->is_freeing) return code::invalid_value;
  if (found->kind != memory_kind::device && found->kind != memory_kind::pool && found->kind != memory_kind::managed)
    return code::invalid_value;
  if (const auto owner = find_context(found->context)) owner->synchronize();
  return release_allocation(found) ? code::success : code::invalid_value;
}

PL_SIM_API cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  const auto e = enter();
  if (!e) return e.rc;
  if (free_bytes == nullptr || total_bytes == nullptr) return code::invalid_value;
  *free_bytes = e.ctx->gpu->memory_bytes - e.ctx->gpu->used_bytes.load();
  *total_bytes = e.ctx->gpu->memory_bytes;
  return code::success;
}

PL_SIM_API cuMemGetAddressRange_v2(device_ptr* base, std::size_t* bytes, device_ptr pointer) {
  const auto e = enter();
  if (!e) return e.rc;
  const auto found = address_space::instance().find(pointer);
  if (found == nullptr) return code::not_found;
  if (base != nullptr) *base = found->base;
  if (bytes != nullptr) *bytes = found->bytes;
  return code::success;
}

}  // namespace pl::sim
