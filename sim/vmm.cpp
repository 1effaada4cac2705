// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: address ranges and physical memory apart from each other, and what shares them.
//
// Every cuMemMap makes an allocation record with a new buffer id, so that other memory at the same address is seen as
// such. Physical memory lives while a handle or a mapping refers to it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "base/env.hpp"
#include "base/text.hpp"
#include "sim/context.hpp"
#include "sim/memory.hpp"
#include "sim/multicast.hpp"

namespace pl::sim {

namespace {

struct vmm_state {
  std::mutex mutex;  // guards handle and handle_users of all physical memory, and makes map/unmap single steps
  handle_table<physical_memory, physical_t, 5> table;
};

vmm_state& vmm() {
  static auto* const instance = new vmm_state;
  return *instance;
}

// A fabric handle of the simulated GPU names the exporter's memfd by pid and number, as its IPC handles do (ipc.cpp).
struct fabric_fields {
  std::uint32_t magic;
  std::int32_t fd;
  std::uint64_t pid;
  std::uint64_t inode;
  std::uint64_t unused[5];
};
constexpr std::uint32_t kFabricMagic = 0x42464c50;  // "PLFB"
static_assert(sizeof(fabric_fields) == 64);

result_t export_fabric(void* out, int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return code::operating_system;
  const fabric_fields fields{kFabricMagic, fd, static_cast<std::uint64_t>(getpid()), info.st_ino, {}};
  std::memcpy(out, &fields, sizeof fields);
  return code::success;
}

// A new descriptor, or -1.
int open_fabric(const void* handle) {
  fabric_fields fields;
  std::memcpy(&fields, handle, sizeof fields);
  if (fields.magic != kFabricMagic) return -1;
  const auto path = format("/proc/%llu/fd/%d", static_cast<unsigned long long>(fields.pid), fields.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info {};
  if (fd < 0 || (fstat(fd, &info) == 0 && info.st_ino == fields.inode)) return fd;
  close(fd);
  return -1;
}

// The device of a property block that this simulator can serve, or null.
device* device_of(const allocation_prop* prop) {
  if (prop == nullptr || prop->type != allocation_type::pinned || prop->location.type != location_type::device)
    return nullptr;
  const int known = handle_type::posix_fd | (fabric_handles() != fabric_mode::off ? handle_type::fabric : 0);
  if ((prop->requested_handle_types & ~known) != 0) return nullptr;
  return find_device(prop->location.id);
}

physical_t hand_out_locked(const std::shared_ptr<physical_memory>& memory) {
  if (memory->handle == 0) memory->handle = vmm().table.insert(memory);
  ++memory->handle_users;
  return memory->handle;
}

mapping map_whole(device_ptr base, std::size_t bytes, const physical_memory& physical) {
  mapping entry;
  entry.base = base;
  entry.bytes = bytes;
  entry.memory = physical.memory;
  entry.team = physical.team;
  entry.readable = entry.writable = 0;  // until cuMemSetAccess
  entry.needs_peer_access = false;
  return entry;
}

// Of memory or of a multicast object.
std::shared_ptr<physical_memory> adopt_descriptor(int own, int type, result_t& reason) {
  auto made = std::make_shared<physical_memory>();
  made->prop.requested_handle_types = type;
  if ((made->team = multicast_team::adopt(own)) != nullptr) return made;
  const device* gpu = device_of_descriptor(own);
  struct stat info {};
  if (gpu == nullptr || fstat(own, &info) != 0) {
    reason = code::invalid_value;
    close(own);
    return nullptr;
  }
  made->memory = object::adopt(own, static_cast<std::size_t>(info.st_size), gpu->ordinal);
  made->prop.type = allocation_type::pinned;
  made->prop.location = {location_type::device, gpu->ordinal};
  made->prop.flags.gpu_direct_rdma_capable = 1;
  reason = code::out_of_memory;
  return made->memory != nullptr ? made : nullptr;
}

}  // namespace

std::shared_ptr<physical_memory> find_physical(physical_t handle) { return vmm().table.find(handle); }

physical_t hand_out(const std::shared_ptr<physical_memory>& memory) {
  const std::lock_guard lock(vmm().mutex);
  return hand_out_locked(memory);
}

PL_SIM_API cuMemGetAllocationGranularity(std::size_t* bytes, const allocation_prop* prop, int option) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (bytes == nullptr || (option != granularity::minimum && option != granularity::recommended)) return code::invalid_value;
  if (device_of(prop) == nullptr) return code::invalid_value;
  *bytes = kGpuPageBytes;
  return code::success;
}

PL_SIM_API cuMemAddressReserve(device_ptr* out, std::size_t bytes, std::size_t alignment, device_ptr hint,
                               unsigned long long flags) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (out == nullptr || bytes == 0 || bytes % kGpuPageBytes != 0 || flags != 0) return code::invalid_value;
  if ((alignment & (alignment - 1)) != 0) return code::invalid_value;
  auto& space = address_space::instance();
  const auto e = enter();  // a current context only says whose range to take; none is needed
  const int ordinal = e.ctx != nullptr ? e.ctx->gpu->ordinal : 0;
  const device_ptr base = space.take_range(ordinal, bytes, std::max(alignment, kGpuPageBytes), hint);
  if (base == 0) return code::out_of_memory;
  space.add_reservation(base, bytes);
  *out = base;
  return code::success;
}

PL_SIM_API cuMemAddressFree(device_ptr base, std::size_t bytes) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  auto& space = address_space::instance();
  const std::lock_guard lock(vmm().mutex);
  if (space.is_mapped(base, bytes) || !space.remove_reservation(base, bytes)) return code::invalid_value;
  space.give_range(base, bytes);
  return code::success;
}

PL_SIM_API cuMemCreate(physical_t* out, std::size_t bytes, const allocation_prop* prop, unsigned long long flags) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  device* gpu = device_of(prop);
  if (out == nullptr || bytes == 0 || bytes % kGpuPageBytes != 0 || flags != 0) return code::invalid_value;
  if (gpu == nullptr)
    return prop != nullptr && prop->location.type != location_type::device ? code::not_supported : code::invalid_value;
  const bool wants_fabric = (prop->requested_handle_types & handle_type::fabric) != 0;
  if (wants_fabric && fabric_handles() == fabric_mode::no_imex) return code::not_permitted;
  result_t reason = code::success;
  auto made = std::make_shared<physical_memory>();
  made->memory = object::create(*gpu, bytes, reason);
  if (made->memory == nullptr) return reason;
  made->prop = *prop;
  *out = hand_out(made);
  return code::success;
}

PL_SIM_API cuMemRelease(physical_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  std::shared_ptr<physical_memory> last_use;  // destroyed after the lock
  const std::lock_guard lock(vmm().mutex);
  last_use = vmm().table.find(handle);
  if (last_use == nullptr) return code::invalid_value;
  if (--last_use->handle_users != 0) return code::success;
  vmm().table.remove(handle);
  last_use->handle = 0;
  return code::success;
}

PL_SIM_API cuMemMap(device_ptr base, std::size_t bytes, std::size_t offset, physical_t handle, unsigned long long flags) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  auto& space = address_space::instance();
  const std::lock_guard lock(vmm().mutex);
  const auto memory = vmm().table.find(handle);
  if (memory == nullptr || flags != 0) return code::invalid_value;
  if (memory->team != nullptr && !memory->team->is_complete()) return code::illegal_state;
  const std::size_t most = memory->team != nullptr ? memory->team->bytes() : memory->memory->bytes();
  reservation range;
  if (base % kGpuPageBytes != 0 || bytes == 0 || !space.find_reservation(base, range)) return code::invalid_value;
  // Real drivers, too, map from the memory's beginning only (measured on 580.159).
  if (offset != 0 || bytes % kGpuPageBytes != 0 || bytes > most) return code::not_supported;
  if (range.bytes - (base - range.base) < bytes) return code::invalid_value;
  if (space.is_mapped(base, bytes)) return code::invalid_value;
  space.map(map_whole(base, bytes, *memory));
  auto made = std::make_shared<allocation>();
  made->base = base;
  made->bytes = bytes;
  made->kind = memory_kind::vmm;
  made->device_ordinal = memory->prop.location.id;
  made->handle_types = memory->prop.requested_handle_types;
  made->rdma_capable = memory->prop.flags.gpu_direct_rdma_capable != 0;
  made->physical = memory;
  space.add(made);
  return code::success;
}

PL_SIM_API cuMemUnmap(device_ptr base, std::size_t bytes) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  auto& space = address_space::instance();
  std::vector<allocation_ref> ended;
  const std::lock_guard lock(vmm().mutex);
  reservation range;
  if (bytes == 0 || !space.find_reservation(base, range)) return code::invalid_value;
  if (base % kGpuPageBytes != 0 || range.bytes - (base - range.base) < bytes) return code::invalid_value;
  // What of the range is mapped ends; nothing of it need be (measured on 580.159).
  std::vector<device_ptr> bases;
  if (!space.unmap(base, bytes, &bases)) return code::invalid_value;
  for (const device_ptr address : bases) ended.push_back(space.remove(address));
  return code::success;
}

PL_SIM_API cuMemSetAccess(device_ptr base, std::size_t bytes, const access_desc* desc, std::size_t count) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (desc == nullptr || count == 0 || bytes == 0) return code::invalid_value;
  for (std::size_t i = 0; i < count; ++i) {
    const int access = desc[i].flags;
    if (access != access_flags::none && access != access_flags::read && access != access_flags::read_write)
      return code::invalid_value;
    if (desc[i].location.type != location_type::device) return code::not_supported;
    if (find_device(desc[i].location.id) == nullptr) return code::invalid_device;
  }
  const std::lock_guard lock(vmm().mutex);
  reservation range;
  if (!address_space::instance().find_reservation(base, range)) return code::invalid_value;
  for (std::size_t i = 0; i < count; ++i)
    if (!address_space::instance().set_access(base, bytes, 1u << desc[i].location.id, desc[i].flags))
      return code::invalid_value;
  return code::success;
}

PL_SIM_API cuMemGetAccess(unsigned long long* flags, const memory_location* place, device_ptr pointer) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (flags == nullptr || place == nullptr) return code::invalid_value;
  if (place->type != location_type::device || find_device(place->id) == nullptr) return code::invalid_value;
  const auto found = address_space::instance().mappings_over(pointer, 1);
  if (found.empty()) return code::invalid_value;
  const unsigned bit = 1u << place->id;
  *flags = access_flags::none;
  if ((found[0].readable & bit) != 0) *flags = access_flags::read;
  if ((found[0].writable & bit) != 0) *flags = access_flags::read_write;
  return code::success;
}

PL_SIM_API cuMemRetainAllocationHandle(physical_t* out, void* pointer) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (out == nullptr) return code::invalid_value;
  const auto found = address_space::instance().find(reinterpret_cast<device_ptr>(pointer));
  if (found == nullptr || found->physical == nullptr) return code::invalid_value;
  const std::lock_guard lock(vmm().mutex);
  *out = hand_out_locked(found->physical);
  return code::success;
}

PL_SIM_API cuMemGetAllocationPropertiesFromHandle(allocation_prop* prop, physical_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto memory = vmm().table.find(handle);
  if (prop == nullptr || memory == nullptr || memory->team != nullptr) return code::invalid_value;
  *prop = memory->prop;
  return code::success;
}

PL_SIM_API cuMemExportToShareableHandle(void* out, physical_t handle, int type, unsigned long long flags) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto memory = vmm().table.find(handle);
  if (out == nullptr || memory == nullptr || flags != 0) return code::invalid_value;
  if (type != handle_type::posix_fd && type != handle_type::fabric) return code::not_supported;
  const auto& team = memory->team;
  const int allowed = team != nullptr ? team->handle_types() : memory->prop.requested_handle_types;
  if ((allowed & type) == 0) return code::invalid_value;
  if (type == handle_type::fabric) return export_fabric(out, team != nullptr ? team->fd() : memory->memory->fd());
  const int fd = team != nullptr ? team->reopen() : memory->memory->reopen();
  if (fd < 0) return code::operating_system;
  *static_cast<int*>(out) = fd;
  return code::success;
}

PL_SIM_API cuMemImportFromShareableHandle(physical_t* out, void* os_handle, int type) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (out == nullptr) return code::invalid_value;
  const bool is_fabric = type == handle_type::fabric && fabric_handles() == fabric_mode::on;
  if (type != handle_type::posix_fd && !is_fabric) return code::not_supported;
  if (is_fabric && os_handle == nullptr) return code::invalid_value;
  const int own = is_fabric ? open_fabric(os_handle)
                            : fcntl(static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle)), F_DUPFD_CLOEXEC, 0);
  if (own < 0) return code::invalid_value;
  result_t reason = code::success;
  const auto made = adopt_descriptor(own, type, reason);
  if (made == nullptr) return reason;
  *out = hand_out(made);
  return code::success;
}

}  // namespace pl::sim
