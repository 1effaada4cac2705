// SPDX-License-Identifier: Apache-2.0
// libpeerlane's C interface: registry operations, results as errno values. peerlane/peerlane.h defines the contract.
#include <peerlane/peerlane.h>

#include "base/env.hpp"
#include "capi/capi_call.hpp"
#include "capi/errno_guard.hpp"

using pl::fail;
using pl::kNullPointer;

namespace {

pl::session* session_of(peerlane_session_t handle) { return reinterpret_cast<pl::session*>(handle); }
pl::region* region_of(peerlane_mapping_t handle) { return reinterpret_cast<pl::region*>(handle); }

// CPU address of `offset_bytes`, or an error if the range leaves the mapping.
int locate(peerlane_mapping_t handle, size_t offset_bytes, size_t size_bytes, char** address) {
  pl::region* region = region_of(handle);
  if (const int code = pl::check_region(region)) [[unlikely]]
    return fail(code, code == EACCES ? "the mapping belongs to another process (made before fork)"
                                     : "the mapping is not live: unmapped already, or not made by this library");
  const std::uint64_t limit = region->data_bytes.load(std::memory_order_acquire);
  if (offset_bytes > limit || size_bytes > limit - offset_bytes) [[unlikely]]
    return fail(ERANGE, "offset plus size leaves the mapping: nothing was copied");
  *address = region->data.load(std::memory_order_relaxed) + offset_bytes;
  return 0;
}

}  // namespace

PL_EXPORT int peerlane_session_open(const struct peerlane_session_options* options, peerlane_session_t* session) try {
  const pl::errno_guard guard;
  if (session == nullptr) return fail(EINVAL, kNullPointer);
  peerlane_session_options given{};
  if (options != nullptr) {
    if (options->struct_bytes < sizeof given)
      return fail(EINVAL, "options->struct_bytes is not sizeof(struct peerlane_session_options)");
    std::memcpy(&given, options, sizeof given);
  }
  const std::string name = given.backend != nullptr ? given.backend : pl::env_read("PEERLANE_BACKEND").text;
  auto opened = pl::open_session({&pl::default_device_io(), nullptr}, name);
  if (!opened) return fail(opened.error());
  *session = reinterpret_cast<peerlane_session_t>(*opened);
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_session_close(peerlane_session_t session) try {
  const pl::errno_guard guard;
  const auto outcome = pl::close_session(session_of(session));
  return outcome ? 0 : fail(outcome.error());
}
PL_NO_EXCEPTIONS

namespace {

int map_memory(peerlane_session_t session, uint64_t device_ptr, size_t size_bytes, uint32_t flags,
               const pl::cu::ipc_mem_handle_t* ipc_handle, peerlane_mapping_t* mapping) {
  if (mapping == nullptr) return fail(EINVAL, kNullPointer);
  if ((flags & ~static_cast<uint32_t>(PEERLANE_MAP_FORCE_PCIE | PEERLANE_MAP_VERIFY)) != 0)
    return fail(EINVAL, "unknown bits in flags: give PEERLANE_MAP_ values only");
  pl::pin_request request;
  request.range = {device_ptr, size_bytes};
  request.force_pcie = (flags & PEERLANE_MAP_FORCE_PCIE) != 0;
  request.verify = (flags & PEERLANE_MAP_VERIFY) != 0;
  request.ipc_handle = ipc_handle;
  auto pinned = pl::pin_and_map_region(session_of(session), request);
  if (!pinned) return fail(pinned.error());
  *mapping = reinterpret_cast<peerlane_mapping_t>(*pinned);
  return 0;
}

}  // namespace

PL_EXPORT int peerlane_map(peerlane_session_t session, uint64_t device_ptr, size_t size_bytes, uint32_t flags,
                           peerlane_mapping_t* mapping) try {
  const pl::errno_guard guard;
  return map_memory(session, device_ptr, size_bytes, flags, nullptr, mapping);
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_map_ipc(peerlane_session_t session, uint64_t device_ptr, size_t size_bytes, uint32_t flags,
                               const void* ipc_handle, peerlane_mapping_t* mapping) try {
  const pl::errno_guard guard;
  if (ipc_handle == nullptr) return fail(EINVAL, kNullPointer);
  pl::cu::ipc_mem_handle_t bytes;
  std::memcpy(&bytes, ipc_handle, sizeof bytes);
  return map_memory(session, device_ptr, size_bytes, flags, &bytes, mapping);
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_unmap(peerlane_mapping_t mapping) try {
  const pl::errno_guard guard;
  pl::region* region = region_of(mapping);
  if (const int code = pl::check_region(region)) return fail(code, "the mapping is not live in this process");
  const auto outcome = pl::unpin_region(region->owner.load(std::memory_order_relaxed), region, pl::unmapping::by_request);
  return outcome ? 0 : fail(outcome.error());
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_mapping_get_info(peerlane_mapping_t mapping, struct peerlane_mapping_info* info) {
  if (info == nullptr) return fail(EINVAL, kNullPointer);
  const pl::region* region = region_of(mapping);
  if (const int code = pl::check_region(region)) return fail(code, "the mapping is not live in this process");
  peerlane_mapping_info filled{};
  filled.device_ptr = region->device_ptr;
  filled.size_bytes = region->size_bytes;
  filled.data = region->data.load(std::memory_order_relaxed);
  filled.pinned_ptr = region->pin->range().begin;
  filled.pinned_size_bytes = region->pin->range().size_bytes;
  filled.mapping_type = static_cast<uint32_t>(region->type.load(std::memory_order_relaxed));
  filled.device_ordinal = region->pin->device_ordinal();
  filled.backend = region->pin->backend_name();
  *info = filled;
  return 0;
}

PL_EXPORT void* peerlane_mapping_data(peerlane_mapping_t mapping) {
  return pl::check_region(region_of(mapping)) == 0 ? region_of(mapping)->data.load(std::memory_order_relaxed) : nullptr;
}

PL_EXPORT int peerlane_mapping_write(peerlane_mapping_t mapping, size_t offset_bytes, const void* source,
                                     size_t size_bytes) {
  char* address = nullptr;
  if (const int code = locate(mapping, offset_bytes, size_bytes, &address)) [[unlikely]]
    return code;
  return pl::region_write(region_of(mapping), address, source, size_bytes, true);
}

PL_EXPORT int peerlane_mapping_write_unfenced(peerlane_mapping_t mapping, size_t offset_bytes, const void* source,
                                              size_t size_bytes) {
  char* address = nullptr;
  if (const int code = locate(mapping, offset_bytes, size_bytes, &address)) [[unlikely]]
    return code;
  return pl::region_write(region_of(mapping), address, source, size_bytes, false);
}

PL_EXPORT int peerlane_mapping_read(peerlane_mapping_t mapping, size_t offset_bytes, void* destination, size_t size_bytes) {
  char* address = nullptr;
  if (const int code = locate(mapping, offset_bytes, size_bytes, &address)) [[unlikely]]
    return code;
  return pl::region_read(region_of(mapping), destination, address, size_bytes);
}

PL_EXPORT int peerlane_mapping_fill(peerlane_mapping_t mapping, size_t offset_bytes, int byte_value, size_t size_bytes) {
  char* address = nullptr;
  if (const int code = locate(mapping, offset_bytes, size_bytes, &address)) [[unlikely]]
    return code;
  return pl::region_fill(region_of(mapping), address, static_cast<std::uint8_t>(byte_value), size_bytes);
}

PL_EXPORT int peerlane_mapping_flush(peerlane_mapping_t mapping) { return pl::region_flush(region_of(mapping)); }

PL_EXPORT const char* peerlane_session_backend_name(peerlane_session_t session) try {
  const auto traits = pl::traits_of(session_of(session));
  return traits ? traits->backend_name : "";
} catch (const std::bad_alloc&) { return ""; }

PL_EXPORT int peerlane_session_is_simulated(peerlane_session_t session, int* simulated) try {
  const pl::errno_guard guard;
  if (simulated == nullptr) return fail(EINVAL, kNullPointer);
  if (const int code = pl::check_session(session_of(session))) return fail(code, "the session is not open in this process");
  const auto cuda = pl::cu::driver();
  if (!cuda) return fail(cuda.error());
  *simulated = (*cuda)->is_simulated ? 1 : 0;
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT const char* peerlane_last_error(void) { return pl::last_error(); }

PL_EXPORT void peerlane_get_version(int* major, int* minor) {
  if (major != nullptr) *major = PEERLANE_VERSION_MAJOR;
  if (minor != nullptr) *minor = PEERLANE_VERSION_MINOR;
}
