// SPDX-License-Identifier: Apache-2.0
// Legacy IPC handles: one process's cuMemAlloc memory in another process of the same user.
//
// The handle names the exporter's memfd by pid and number; the importer opens it through /proc, which needs the same
// rights as reading the exporter's memory map, and no cooperation of the exporter at that moment. The inode in the
// handle unmasks numbers that have been reused meanwhile. Fields that the real handle is known to carry stand where
// they stand there.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/shortage.hpp"
#include "base/text.hpp"
#include "sim/context.hpp"
#include "sim/heap.hpp"
#include "sim/memory.hpp"

namespace pl::sim {
namespace {

constexpr std::uint32_t kMagic = 0x434c5049;  // "IPLC"

struct handle_fields {
  std::uint32_t magic;
  std::int32_t fd;
  std::uint64_t pid;
  std::uint64_t allocation_bytes;
  std::uint64_t offset;  // of the allocation in the object
  std::uint64_t inode;
  std::uint64_t object_bytes;
  std::uint32_t client;
  std::uint32_t object_handle;
  std::uint64_t buffer_id;
};
static_assert(sizeof(handle_fields) == sizeof(ipc_mem_handle_t));

struct import {
  device_ptr base = 0;
  unsigned users = 0;
};

struct ipc_state {
  std::mutex mutex;
  // Opening what is open already yields the same pointer once more.
  std::map<std::pair<context_t, std::string>, import> open;
};

ipc_state& imports() {
  static auto* const instance = new ipc_state;
  return *instance;
}

result_t map_import(const context& ctx, const handle_fields& fields, device_ptr& out) {
  const auto path = format("/proc/%llu/fd/%d", static_cast<unsigned long long>(fields.pid), fields.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return is_shortage(errno) ? code::operating_system : code::invalid_value;
  struct stat info {};
  const device* gpu = device_of_descriptor(fd);
  if (fstat(fd, &info) != 0 || info.st_ino != fields.inode || gpu == nullptr) return close(fd), code::invalid_value;
  mapping entry;
  entry.memory = object::adopt(fd, fields.object_bytes, gpu->ordinal);
  if (entry.memory == nullptr) return code::map_failed;
  entry.bytes = entry.memory->bytes();
  auto& space = address_space::instance();
  entry.base = space.take_range(ctx.gpu->ordinal, entry.bytes, kGpuPageBytes, 0);
  if (entry.base == 0) return code::out_of_memory;
  entry.needs_peer_access = false;
  out = entry.base + fields.offset;
  space.map(std::move(entry));
  auto made = std::make_shared<allocation>();
  made->base = out;
  made->bytes = fields.allocation_bytes;
  made->kind = memory_kind::ipc;
  made->device_ordinal = gpu->ordinal;
  made->context = ctx.handle;
  space.add(made);
  return code::success;
}

}  // namespace

void release_ipc_memory(const allocation& freed) {
  {
    const std::lock_guard lock(imports().mutex);
    std::erase_if(imports().open, [&](const auto& known) { return known.second.base == freed.base; });
  }
  const auto pieces = address_space::instance().mappings_over(freed.base, 1);
  if (!pieces.empty()) unmap_object(pieces[0].base, pieces[0].bytes);
}

PL_SIM_API cuIpcGetMemHandle(ipc_mem_handle_t* handle, device_ptr pointer) {
  const auto e = enter();
  if (!e) return e.rc;
  const auto found = address_space::instance().find(pointer);
  if (handle == nullptr || found == nullptr || found->kind != memory_kind::device) return code::invalid_value;
  const auto pieces = address_space::instance().mappings_over(found->base, 1);
  if (pieces.empty()) return code::invalid_value;
  const mapping& m = pieces[0];
  struct stat info {};
  if (fstat(m.memory->fd(), &info) != 0) return code::operating_system;
  const handle_fields fields{kMagic,
                             m.memory->fd(),
                             static_cast<std::uint64_t>(getpid()),
                             found->bytes,
                             m.offset + (found->base - m.base),
                             info.st_ino,
                             m.memory->bytes(),
                             client_handle(),
                             m.memory->handle(),
                             found->buffer_id};
  std::memcpy(handle->reserved, &fields, sizeof fields);
  return code::success;
}

PL_SIM_API cuIpcOpenMemHandle_v2(device_ptr* out, ipc_mem_handle_t handle, unsigned flags) {
  const auto e = enter();
  if (!e) return e.rc;
  constexpr unsigned kLazyPeerAccess = 1;
  handle_fields fields;
  std::memcpy(&fields, handle.reserved, sizeof fields);
  if (out == nullptr || flags > kLazyPeerAccess) return code::invalid_value;
  if (fields.magic != kMagic || fields.offset > fields.object_bytes ||
      fields.allocation_bytes > fields.object_bytes - fields.offset)
    return code::invalid_value;
  if (fields.pid == static_cast<std::uint64_t>(getpid())) return code::invalid_context;  // as CUDA: other processes only
  auto& state = imports();
  const std::lock_guard lock(state.mutex);
  auto& known = state.open[{e.ctx->handle, std::string(handle.reserved, sizeof handle.reserved)}];
  if (known.users == 0) {
    if (const auto rc = map_import(*e.ctx, fields, known.base); rc != code::success) {
      std::erase_if(state.open, [](const auto& entry) { return entry.second.users == 0; });
      return rc;
    }
  }
  ++known.users;
  *out = known.base;
  return code::success;
}

PL_SIM_API cuIpcCloseMemHandle(device_ptr pointer) {
  const auto e = enter();
  if (!e) return e.rc;
  const auto found = address_space::instance().find_base(pointer);
  if (found == nullptr || found->kind != memory_kind::ipc) return code::invalid_value;
  {
    auto& state = imports();
    const std::lock_guard lock(state.mutex);
    for (auto& [key, known] : state.open)
      if (known.base == pointer && --known.users != 0) return code::success;
  }
  if (const auto owner = find_context(found->context)) owner->synchronize();
  return release_allocation(found) ? code::success : code::invalid_value;
}

}  // namespace pl::sim
