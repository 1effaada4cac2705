// SPDX-License-Identifier: Apache-2.0
// Memory pools: stream-ordered allocation out of 32 MiB objects, so that pool pointers are parts of a larger object.
//
// An allocation's address is known at once and usable at once (a legal early moment of the stream order); a free takes
// effect when the stream reaches it.
#include "sim/capture.hpp"
#include "sim/heap.hpp"
#include "sim/memory.hpp"

namespace pl::sim {

struct memory_pool {
  memory_pool(int ordinal, pool_props given) : device_ordinal(ordinal), props(given), memory(ordinal, kChunkBytes) {}
  static constexpr std::size_t kChunkBytes = 32u << 20;

  pool_t handle = nullptr;
  const int device_ordinal;
  const pool_props props;
  heap memory;
  std::mutex mutex;  // guards what follows
  int reuse[3] = {1, 1, 1};
  std::uint64_t release_threshold = 0;
  std::uint64_t used = 0, used_high = 0, reserved_high = 0;
};

namespace {

struct pool_state {
  handle_table<memory_pool, pool_t, 6> table;
  std::mutex mutex;
  std::vector<pool_t> defaults;  // by device ordinal; null until asked for
  std::vector<pool_t> current;
};

pool_state& pools() {
  static auto* const instance = [] {
    auto* made = new pool_state;
    made->defaults.resize(devices().size());
    made->current.resize(devices().size());
    return made;
  }();
  return *instance;
}

std::shared_ptr<memory_pool> make_pool(int ordinal, const pool_props& props) {
  auto made = std::make_shared<memory_pool>(ordinal, props);
  made->handle = pools().table.insert(made);
  return made;
}

pool_t default_pool(int ordinal) {
  auto& all = pools();
  const std::lock_guard lock(all.mutex);
  auto& slot = all.defaults[static_cast<std::size_t>(ordinal)];
  if (slot == nullptr)
    slot = make_pool(ordinal, {allocation_type::pinned, 0, {location_type::device, ordinal}, nullptr, 0, 0, {}})->handle;
  return slot;
}

pool_t current_pool(int ordinal) {
  {
    auto& all = pools();
    const std::lock_guard lock(all.mutex);
    if (const pool_t chosen = all.current[static_cast<std::size_t>(ordinal)]; chosen != nullptr) return chosen;
  }
  return default_pool(ordinal);
}

result_t allocate_from(const std::shared_ptr<memory_pool>& pool, std::size_t bytes, context_t owner, device_ptr* out) {
  if (bytes > find_device(pool->device_ordinal)->memory_bytes) return code::out_of_memory;
  device_ptr base = 0;
  if (const auto rc = pool->memory.allocate(bytes, base); rc != code::success) return rc;
  auto made = std::make_shared<allocation>();
  made->base = base;
  made->bytes = bytes;
  made->kind = memory_kind::pool;
  made->device_ordinal = pool->device_ordinal;
  made->context = owner;
  made->pool = pool->handle;
  made->source = pool;
  {
    const std::lock_guard lock(pool->mutex);
    pool->used += bytes;
    pool->used_high = std::max(pool->used_high, pool->used);
    pool->reserved_high = std::max<std::uint64_t>(pool->reserved_high, pool->memory.reserved_bytes());
  }
  address_space::instance().add(made);
  *out = base;
  return code::success;
}

enum pool_attribute : int {
  reuse_follow_event_dependencies = 1,
  reuse_allow_internal_dependencies = 3,
  release_threshold = 4,
  reserved_current = 5,
  reserved_high = 6,
  used_current = 7,
  used_high = 8,
};

}  // namespace

void release_pool_memory(const allocation& freed) {
  auto& pool = *freed.source;
  std::uint64_t keep = 0;
  {
    const std::lock_guard lock(pool.mutex);
    pool.used -= freed.bytes;
    keep = pool.release_threshold;
  }
  pool.memory.free(freed.base, freed.bytes, keep);
}

PL_SIM_API cuDeviceGetDefaultMemPool(pool_t* out, device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (find_device(ordinal) == nullptr) return code::invalid_device;
  if (out == nullptr) return code::invalid_value;
  *out = default_pool(ordinal);
  return code::success;
}

PL_SIM_API cuDeviceGetMemPool(pool_t* out, device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (find_device(ordinal) == nullptr) return code::invalid_device;
  if (out == nullptr) return code::invalid_value;
  *out = current_pool(ordinal);
  return code::success;
}

PL_SIM_API cuDeviceSetMemPool(device_t ordinal, pool_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (find_device(ordinal) == nullptr) return code::invalid_device;
  const auto pool = pools().table.find(handle);
  if (pool == nullptr || pool->device_ordinal != ordinal) return code::invalid_value;
  const std::lock_guard lock(pools().mutex);
  pools().current[static_cast<std::size_t>(ordinal)] = handle;
  return code::success;
}

PL_SIM_API cuMemPoolCreate(pool_t* out, const pool_props* props) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (out == nullptr || props == nullptr || props->alloc_type != allocation_type::pinned) return code::invalid_value;
  if (props->location.type != location_type::device || props->handle_types != handle_type::none) return code::not_supported;
  if (find_device(props->location.id) == nullptr) return code::invalid_device;
  *out = make_pool(props->location.id, *props)->handle;
  return code::success;
}

PL_SIM_API cuMemPoolDestroy(pool_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  auto& all = pools();
  const std::lock_guard lock(all.mutex);
  for (const pool_t kept : all.defaults)
    if (handle == kept) return code::invalid_value;
  if (all.table.remove(handle) == nullptr) return code::invalid_value;
  for (auto& chosen : all.current)
    if (chosen == handle) chosen = nullptr;
  return code::success;  // its memory stays with the allocations that are left
}

PL_SIM_API cuMemPoolTrimTo(pool_t handle, std::size_t keep_bytes) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto pool = pools().table.find(handle);
  if (pool == nullptr) return code::invalid_value;
  pool->memory.trim(keep_bytes);
  return code::success;
}

PL_SIM_API cuMemPoolSetAttribute(pool_t handle, int attribute, void* value) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto pool = pools().table.find(handle);
  if (pool == nullptr || value == nullptr) return code::invalid_value;
  const std::lock_guard lock(pool->mutex);
  if (attribute >= reuse_follow_event_dependencies && attribute <= reuse_allow_internal_dependencies) {
    pool->reuse[attribute - 1] = *static_cast<const int*>(value);
    return code::success;
  }
  const std::uint64_t wanted = *static_cast<const std::uint64_t*>(value);
  if (attribute == release_threshold) return pool->release_threshold = wanted, code::success;
  // The high-water marks can only be set back to "now".
  if (attribute == reserved_high && wanted == 0) return pool->reserved_high = pool->memory.reserved_bytes(), code::success;
  if (attribute == used_high && wanted == 0) return pool->used_high = pool->used, code::success;
  return code::invalid_value;
}

PL_SIM_API cuMemPoolGetAttribute(pool_t handle, int attribute, void* value) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto pool = pools().table.find(handle);
  if (pool == nullptr || value == nullptr) return code::invalid_value;
  const std::lock_guard lock(pool->mutex);
  auto* const wide = static_cast<std::uint64_t*>(value);
  switch (attribute) {
    case release_threshold:
      return *wide = pool->release_threshold, code::success;
    case reserved_current:
      return *wide = pool->memory.reserved_bytes(), code::success;
    case reserved_high:
      return *wide = pool->reserved_high, code::success;
    case used_current:
      return *wide = pool->used, code::success;
    case used_high:
      return *wide = pool->used_high, code::success;
    default:
      if (attribute < reuse_follow_event_dependencies || attribute > reuse_allow_internal_dependencies)
        return code::invalid_value;
      return *static_cast<int*>(value) = pool->reuse[attribute - 1], code::success;
  }
}

// Every device may access every pool, as after the calls a program would make for it.
PL_SIM_API cuMemPoolSetAccess(pool_t handle, const access_desc*, std::size_t) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  return pools().table.find(handle) != nullptr ? code::success : code::invalid_value;
}

PL_SIM_API cuMemPoolGetAccess(int* flags, pool_t handle, memory_location* place) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (flags == nullptr || place == nullptr || pools().table.find(handle) == nullptr) return code::invalid_value;
  if (place->type != location_type::device) return code::invalid_value;
  if (find_device(place->id) == nullptr) return code::invalid_device;
  return *flags = access_flags::read_write, code::success;
}

PL_SIM_API cuMemAllocAsync(device_ptr* out, std::size_t bytes, stream_t handle) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (out == nullptr) return code::invalid_value;
  if (const auto rc = refuse_while_capturing(s); rc != code::success) return rc;  // no such nodes here
  if (bytes == 0) return *out = 0, code::success;
  const auto pool = pools().table.find(current_pool(s.ctx->gpu->ordinal));
  return pool == nullptr ? static_cast<result_t>(code::invalid_value) : allocate_from(pool, bytes, s.ctx->handle, out);
}

PL_SIM_API cuMemAllocFromPoolAsync(device_ptr* out, std::size_t bytes, pool_t handle, stream_t stream_handle) {
  const auto s = enter_stream(stream_handle);
  if (!s) return s.rc;
  const auto pool = pools().table.find(handle);
  if (out == nullptr || pool == nullptr) return code::invalid_value;
  if (const auto rc = refuse_while_capturing(s); rc != code::success) return rc;
  if (bytes == 0) return *out = 0, code::success;
  return allocate_from(pool, bytes, s.ctx->handle, out);
}

PL_SIM_API cuMemFreeAsync(device_ptr pointer, stream_t handle) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (pointer == 0) return code::success;
  const auto found = address_space::instance().find_base(pointer);
  if (found == nullptr || (found->kind != memory_kind::pool && found->kind != memory_kind::device))
    return code::invalid_value;
  if (const auto rc = refuse_while_capturing(s); rc != code::success) return rc;
  if (found->is_freeing.exchange(true)) return code::invalid_value;
  submit(
      s.ctx, s.target_stream, [found] { release_allocation(found); }, true);
  return code::success;
}

}  // namespace pl::sim
