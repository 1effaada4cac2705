// SPDX-License-Identifier: Apache-2.0
// Host memory the driver knows about: pinned, registered, managed. Its address is the same on both sides, so nothing is
// mapped; the record is what makes kernels and attributes accept it.
#include <sys/mman.h>

#include <vector>

#include "sim/capture.hpp"
#include "sim/memory.hpp"
#include "sim/pace.hpp"

namespace pl::sim {
namespace {

constexpr unsigned kHostAllocFlags =
    host_alloc_flag::portable | host_alloc_flag::device_map | host_alloc_flag::write_combined;
constexpr unsigned kRegisterReadOnly = 8;
constexpr unsigned kHostRegisterFlags =
    host_register_flag::portable | host_register_flag::device_map | host_register_flag::io_memory | kRegisterReadOnly;

result_t allocate_host(const context& ctx, std::size_t bytes, memory_kind kind, unsigned flags, void** out) {
  const std::size_t mapped = round_up(bytes, kPageBytes);
  if (mapped < bytes) return code::out_of_memory;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return code::out_of_memory;
  auto made = std::make_shared<allocation>();
  made->base = reinterpret_cast<device_ptr>(base);
  made->bytes = bytes;
  made->kind = kind;
  made->device_ordinal = ctx.gpu->ordinal;
  made->context = ctx.handle;
  made->flags = flags;
  made->rdma_capable = false;
  address_space::instance().add(made);
  *out = base;
  return code::success;
}

// The record of a host pointer, or null. `kind` filters; base only, or anywhere inside.
allocation_ref find_host(void* pointer) {
  auto found = address_space::instance().find(reinterpret_cast<device_ptr>(pointer));
  return found != nullptr && found->is_host_address() ? found : nullptr;
}

// Whether all pages are there, whatever their protection.
bool is_mapped(device_ptr base, std::size_t bytes) {
  const device_ptr begin = base / kPageBytes * kPageBytes;
  std::vector<unsigned char> pages((base + bytes - begin + kPageBytes - 1) / kPageBytes);
  return mincore(reinterpret_cast<void*>(begin), pages.size() * kPageBytes, pages.data()) == 0;
}

}  // namespace

void release_host_memory(const allocation& freed) {
  set_host_node(reinterpret_cast<void*>(freed.base), freed.bytes, -1);
  if (freed.kind != memory_kind::registered) munmap(reinterpret_cast<void*>(freed.base), round_up(freed.bytes, kPageBytes));
}

PL_SIM_API cuMemHostAlloc(void** out, std::size_t bytes, unsigned flags) {
  const auto e = enter_unsafe();
  if (!e) return e.rc;
  if (out == nullptr || (flags & ~kHostAllocFlags) != 0) return code::invalid_value;
  if (bytes == 0) return *out = nullptr, code::success;
  return allocate_host(*e.ctx, bytes, memory_kind::host, flags, out);
}

PL_SIM_API cuMemAllocHost_v2(void** out, std::size_t bytes) {
  // Under unified addressing every pinned allocation is mapped and portable.
  return cuMemHostAlloc(out, bytes, host_alloc_flag::portable | host_alloc_flag::device_map);
}

PL_SIM_API cuMemFreeHost(void* pointer) {
  if (const auto rc = enter_unsafe_anywhere(); rc != code::success) return rc;
  if (pointer == nullptr) return code::success;
  const auto found = address_space::instance().find_base(reinterpret_cast<device_ptr>(pointer));
  if (found == nullptr || found->kind != memory_kind::host) return code::invalid_value;
  if (const auto owner = find_context(found->context)) owner->synchronize();
  return release_allocation(found) ? code::success : code::invalid_value;
}

PL_SIM_API cuMemAllocManaged(device_ptr* out, std::size_t bytes, unsigned flags) {
  const auto e = enter_unsafe();
  if (!e) return e.rc;
  constexpr unsigned kAttachGlobal = 1;
  constexpr unsigned kAttachHost = 2;
  if (out == nullptr || bytes == 0 || (flags != kAttachGlobal && flags != kAttachHost)) return code::invalid_value;
  void* base = nullptr;
  const result_t rc = allocate_host(*e.ctx, bytes, memory_kind::managed, flags, &base);
  if (rc == code::success) *out = reinterpret_cast<device_ptr>(base);
  return rc;
}

PL_SIM_API cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned flags) {
  const auto e = enter_unsafe();
  if (!e) return e.rc;
  if (pointer == nullptr || bytes == 0 || (flags & ~kHostRegisterFlags) != 0) return code::invalid_value;
  auto& space = address_space::instance();
  const auto base = reinterpret_cast<device_ptr>(pointer);
  if (base + bytes < base || space.is_device_address(base)) return code::invalid_value;
  if (space.overlaps(base, bytes)) return code::host_memory_already_registered;
  if ((flags & host_register_flag::io_memory) == 0 && !is_mapped(base, bytes)) return code::invalid_value;
  auto made = std::make_shared<allocation>();
  made->base = base;
  made->bytes = bytes;
  made->kind = memory_kind::registered;
  made->device_ordinal = e.ctx->gpu->ordinal;
  made->context = e.ctx->handle;
  made->flags = flags;
  made->rdma_capable = false;
  space.add(made);
  return code::success;
}

PL_SIM_API cuMemHostUnregister(void* pointer) {
  if (const auto rc = enter_unsafe_anywhere(); rc != code::success) return rc;
  const auto found = find_host(pointer);
  if (pointer == nullptr) return code::invalid_value;
  if (found == nullptr || found->kind != memory_kind::registered) return code::host_memory_not_registered;
  if (found->base != reinterpret_cast<device_ptr>(pointer)) return code::invalid_value;  // amid a registered range
  if (const auto owner = find_context(found->context)) owner->synchronize();
  return release_allocation(found) ? code::success : code::host_memory_not_registered;
}

PL_SIM_API cuMemHostGetDevicePointer_v2(device_ptr* out, void* host, unsigned flags) {
  const auto e = enter();
  if (!e) return e.rc;
  if (out == nullptr || flags != 0) return code::invalid_value;
  const auto found = find_host(host);
  if (found == nullptr || found->kind == memory_kind::managed) return code::invalid_value;
  *out = reinterpret_cast<device_ptr>(host);
  return code::success;
}

PL_SIM_API cuMemHostGetFlags(unsigned* flags, void* host) {
  const auto e = enter();
  if (!e) return e.rc;
  if (flags == nullptr) return code::invalid_value;
  const auto found = find_host(host);
  if (found == nullptr || found->kind == memory_kind::managed) return code::invalid_value;
  *flags = (found->flags & kHostAllocFlags) | host_alloc_flag::device_map;
  return code::success;
}

// Placement hints about managed memory: accepted, nothing to place.
PL_SIM_API cuMemAdvise(device_ptr, std::size_t, int, device_t) { return enter().rc; }
PL_SIM_API cuMemAdvise_v2(device_ptr, std::size_t, int, memory_location) { return enter().rc; }
PL_SIM_API cuMemPrefetchAsync(device_ptr, std::size_t, device_t, stream_t stream_handle) {
  return enter_stream(stream_handle).rc;
}
PL_SIM_API cuMemPrefetchAsync_v2(device_ptr, std::size_t, memory_location, unsigned, stream_t stream_handle) {
  return enter_stream(stream_handle).rc;
}
PL_SIM_API cuStreamAttachMemAsync(stream_t stream_handle, device_ptr, std::size_t, unsigned) {
  return enter_stream(stream_handle).rc;
}

}  // namespace pl::sim
