// SPDX-License-Identifier: Apache-2.0
// The drop-in C interface: turns calls into registry operations and results into errno values, nothing else.
// include/gdrapi.h defines the contract of every call.
#define PEERLANE_GDRAPI_IMPLEMENTATION
#include <gdrapi.h>

#include <cstddef>
#include <cstring>
#include <new>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "capi/errno_guard.hpp"
#include "compat/gdrapi/gdrapi_planner.hpp"
#include "map/registry.hpp"

using pl::fail;

static_assert(offsetof(pl::session, fd) == 0 && offsetof(pl::session, page_size) == 16);
static_assert(sizeof(gdr_info_v1) == 40 && sizeof(gdr_info_v2) == 48);

namespace {

pl::session* session_of(gdr_t g) { return reinterpret_cast<pl::session*>(g); }
pl::region* region_of(gdr_mh_t handle) { return reinterpret_cast<pl::region*>(handle.h); }

int report(const pl::status& outcome) { return outcome ? 0 : fail(outcome.error()); }

constexpr const char* kNullOutput = "an output pointer is null";
constexpr const char* kNoMemory = "memory is exhausted: nothing was changed";

int pin(gdr_t g, unsigned long addr, size_t size, bool force_pcie, gdr_mh_t* handle) try {
  const pl::errno_guard keeper;
  if (handle == nullptr) return fail(EINVAL, kNullOutput);
  handle->h = 0;
  if (const int code = pl::check_session(session_of(g))) return fail(code, "the gdr_t is not open in this process");
  if (force_pcie) {
    const auto traits = pl::traits_of(session_of(g));
    if (!traits) return fail(traits.error());
    if (!traits->supports_force_pcie)
      return fail(EINVAL, "this driver does not support GDR_PIN_FLAG_FORCE_PCIE (attribute 2 is 0)");
  }
  pl::pin_request request;
  request.range = {addr, size};
  request.granule_bytes = pl::kGpuPageBytes;
  request.rule = pl::range_rule::granule;
  request.force_pcie = force_pcie;
  request.is_sole = true;  // clients keep tables by address, and GDRCopy gives each mapping its own
  auto pinned = pl::pin_region(session_of(g), request);
  if (!pinned) return fail(pinned.error());
  pl::note_memory(*pinned);
  handle->h = reinterpret_cast<unsigned long>(*pinned);
  return 0;
} catch (const std::bad_alloc&) { return fail(ENOMEM, kNoMemory); }

// Common fields of both info structs. The caller has checked the handle.
template <class Info>
void fill_info(const pl::region& region, Info& info) {
  const auto& range = region.pin->range();
  const auto type = region.type.load(std::memory_order_relaxed);
  info.va = range.begin;
  info.mapped_size = range.size_bytes;
  info.page_size = static_cast<uint32_t>(pl::kGpuPageBytes);
  info.tm_cycles = region.pin_ticks;
  info.cycles_per_ms = static_cast<uint32_t>(pl::ticks_per_ms());
  info.mapped = region.state.load(std::memory_order_acquire) == pl::region_state::mapped;
  info.wc_mapping = type == pl::arch::mapping_type::wc;
}

int check_pair(gdr_t g, gdr_mh_t handle) {
  if (const int code = pl::check_session(session_of(g))) return fail(code, "the gdr_t is not open in this process");
  if (const int code = pl::check_region(region_of(handle)))
    return fail(code, "the handle is not a live pin of this process");
  if (region_of(handle)->owner.load(std::memory_order_relaxed) != session_of(g))
    return fail(EINVAL, "the handle was pinned with another gdr_t");
  return 0;
}

}  // namespace

#define PL_EXPORT extern "C" __attribute__((visibility("default")))

PL_EXPORT gdr_t gdr_open(void) try {
  const pl::errno_guard keeper;
  auto opened = pl::open_session({&pl::default_device_io(), nullptr}, pl::env_read("PEERLANE_BACKEND").text);
  if (!opened) {
    fail(opened.error());
    return nullptr;
  }
  return reinterpret_cast<gdr_t>(*opened);
} catch (const std::bad_alloc&) {
  fail(ENOMEM, kNoMemory);
  return nullptr;
}

PL_EXPORT int gdr_close(gdr_t g) try {
  const pl::errno_guard keeper;
  return report(pl::close_session(session_of(g)));
} catch (const std::bad_alloc&) { return fail(ENOMEM, kNoMemory); }

PL_EXPORT int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t, uint32_t, gdr_mh_t* handle) {
  return pin(g, addr, size, false, handle);
}

PL_EXPORT int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t* handle) {
  return pin(g, addr, size, (flags & GDR_PIN_FLAG_FORCE_PCIE) != 0, handle);  // other bits have always been ignored
}

PL_EXPORT int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle) try {
  const pl::errno_guard keeper;
  return report(pl::unpin_region(session_of(g), region_of(handle)));
} catch (const std::bad_alloc&) { return fail(ENOMEM, kNoMemory); }

PL_EXPORT int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int* flag) try {
  const pl::errno_guard keeper;
  if (flag == nullptr) return fail(EINVAL, kNullOutput);
  auto revoked = pl::region_revoked(session_of(g), region_of(handle));
  if (!revoked) return fail(revoked.error());
  *flag = *revoked ? 1 : 0;
  return 0;
} catch (const std::bad_alloc&) { return fail(ENOMEM, kNoMemory); }

PL_EXPORT int gdr_get_info(gdr_t g, gdr_mh_t handle, gdr_info_v1_t* info) {
  if (info == nullptr) return fail(EINVAL, kNullOutput);
  if (const int code = check_pair(g, handle)) return code;
  gdr_info_v1_t filled;
  std::memset(&filled, 0, sizeof filled);
  fill_info(*region_of(handle), filled);
  std::memcpy(info, &filled, sizeof filled);  // exactly 40 bytes: old callers' structs have no more
  return 0;
}

PL_EXPORT int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t* info) {
  if (info == nullptr) return fail(EINVAL, kNullOutput);
  if (const int code = check_pair(g, handle)) return code;
  gdr_info_v2_t filled;
  std::memset(&filled, 0, sizeof filled);
  fill_info(*region_of(handle), filled);
  filled.mapping_type = static_cast<gdr_mapping_type_t>(region_of(handle)->type.load(std::memory_order_relaxed));
  std::memcpy(info, &filled, sizeof filled);
  return 0;
}

PL_EXPORT int gdr_map_v2(gdr_t g, gdr_mh_t handle, void** va, size_t size, int flags) try {
  const pl::errno_guard keeper;
  if (va == nullptr) return fail(EINVAL, kNullOutput);
  if (flags < GDR_MAP_FLAG_DEFAULT || flags > GDR_MAP_FLAG_REQ_DEVICE_MAPPING)
    return fail(EINVAL, "map flags must be 0 (default), 1 (write-combining), 2 (caching) or 3 (device)");
  if (const int code = check_pair(g, handle)) return code;
  pl::region* region = region_of(handle);
  if (region->device_ptr % GPU_PAGE_SIZE != 0)
    return fail(EINVAL,
                "gdr_map needs a pin that starts on a 64 KiB boundary: pin the rounded-down address, or use peerlane_map");
  if (auto s = pl::map_region(session_of(g), region, size, static_cast<pl::arch::mapping_type>(flags)); !s)
    return fail(s.error());
  *va = region->data.load(std::memory_order_relaxed);
  return 0;
} catch (const std::bad_alloc&) { return fail(ENOMEM, kNoMemory); }

PL_EXPORT int gdr_map(gdr_t g, gdr_mh_t handle, void** va, size_t size) {
  return gdr_map_v2(g, handle, va, size, GDR_MAP_FLAG_DEFAULT);
}

PL_EXPORT int gdr_unmap(gdr_t g, gdr_mh_t handle, void* va, size_t size) try {
  const pl::errno_guard keeper;
  if (const int code = check_pair(g, handle)) return code;
  const pl::region* region = region_of(handle);
  if (region->state.load(std::memory_order_acquire) == pl::region_state::mapped) {
    const std::size_t mapped = region->data_bytes.load(std::memory_order_relaxed);
    const bool same_size = size <= mapped && size + pl::kHostPageBytes > mapped;  // callers pass the unrounded size
    if (va != region->data.load(std::memory_order_relaxed) || !same_size)
      return fail(EINVAL, "va and size are not those that gdr_map returned: nothing was unmapped");
  }
  return report(pl::unmap_region(session_of(g), region_of(handle)));
} catch (const std::bad_alloc&) { return fail(ENOMEM, kNoMemory); }

PL_EXPORT int gdr_copy_to_mapping(gdr_mh_t handle, void* map_d_ptr, const void* h_ptr, size_t size) {
  if (size >= pl::kMinPlannedBytes && pl::planned_write(region_of(handle), map_d_ptr, h_ptr, size)) return 0;
  return pl::region_write(region_of(handle), map_d_ptr, h_ptr, size, true);
}

PL_EXPORT int gdr_copy_from_mapping(gdr_mh_t handle, void* h_ptr, const void* map_d_ptr, size_t size) {
  if (size >= pl::kMinPlannedBytes && pl::planned_read(region_of(handle), h_ptr, map_d_ptr, size)) return 0;
  return pl::region_read(region_of(handle), h_ptr, map_d_ptr, size);
}

PL_EXPORT int gdr_copy_to_mapping_unfenced(gdr_mh_t handle, void* map_d_ptr, const void* h_ptr, size_t size) {
  return pl::region_write(region_of(handle), map_d_ptr, h_ptr, size, false);
}

PL_EXPORT int gdr_flush_mapping(gdr_mh_t handle) { return pl::region_flush(region_of(handle)); }

PL_EXPORT void gdr_runtime_get_version(int* major, int* minor) {
  if (major != nullptr) *major = GDR_API_MAJOR_VERSION;
  if (minor != nullptr) *minor = GDR_API_MINOR_VERSION;
}

PL_EXPORT int gdr_driver_get_version(gdr_t g, int* major, int* minor) {
  if (const int code = pl::check_session(session_of(g))) return fail(code, "the gdr_t is not open in this process");
  const std::uint32_t word = session_of(g)->gdrdrv_version;
  if (major != nullptr) *major = static_cast<int>(word >> MAJOR_VERSION_SHIFT);
  if (minor != nullptr) *minor = static_cast<int>(word & MINOR_VERSION_MASK);
  return 0;
}

PL_EXPORT int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int* v) try {
  if (v == nullptr) return fail(EINVAL, kNullOutput);
  *v = 0;
  if (const int code = pl::check_session(session_of(g))) return fail(code, "the gdr_t is not open in this process");
  const auto traits = pl::traits_of(session_of(g));  // another thread may close it now
  if (!traits) return fail(traits.error());
  switch (attr) {
    case GDR_ATTR_USE_PERSISTENT_MAPPING:
      *v = traits->is_persistent ? 1 : 0;
      return 0;
    case GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE:
      *v = traits->supports_force_pcie ? 1 : 0;
      return 0;
    // 0 on every backend: the library itself keeps out forked children and receivers of the descriptor.
    case GDR_ATTR_USING_DMA_BUF_MMAP:
      return 0;
    default:
      return fail(EINVAL, "unknown attribute");
  }
} catch (const std::bad_alloc&) { return fail(ENOMEM, kNoMemory); }

PL_EXPORT int gdr_get_mapping_type_string(gdr_mapping_type_t type, const char** pstr) {
  static constexpr const char* kNames[] = {"None", "Write Combining", "Caching", "Device"};
  const auto index = static_cast<unsigned>(type);
  if (pstr == nullptr || index >= GDR_MAPPING_TYPE_MAX) return fail(EINVAL, "unknown mapping type");
  *pstr = kNames[index];
  return 0;
}

PL_EXPORT const char* gdr_last_error(void) { return pl::last_error(); }
