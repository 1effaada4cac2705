// SPDX-License-Identifier: Apache-2.0
// cuMemGetHandleForAddressRange: device memory as a dma-buf-like descriptor, here one of the object's memfd.
//
// Two things are as on a real machine so that mapping backends can be tested whole: before anything is returned, the
// backing objects are announced through libc's ioctl with the resource manager's request (217) and struct, which a
// hook in the import table can listen to; and what can not be expressed as one descriptor is refused.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.hpp"
#include "sim/address_space.hpp"
#include "sim/context.hpp"

namespace pl::sim {
namespace {

constexpr unsigned kObjectsPerCall = 128;

struct export_objects {  // the resource manager's layout
  int fd;
  std::uint32_t client;
  std::uint32_t total_objects;
  std::uint32_t object_count;
  std::uint32_t first_index;
  std::uint64_t total_bytes;
  std::uint8_t mapping_type;
  std::uint8_t allow_mmap;
  std::uint32_t handles[kObjectsPerCall];
  std::uint64_t offsets[kObjectsPerCall];
  std::uint64_t sizes[kObjectsPerCall];
  std::uint32_t status;
};
static_assert(sizeof(export_objects) == 2608);

struct part {  // of the range, in one object
  const object* memory;
  std::size_t offset;
  std::size_t bytes;
};

std::vector<part> split(const std::vector<mapping>& pieces, device_ptr base, std::size_t bytes) {
  std::vector<part> parts;
  for (const auto& m : pieces) {
    const device_ptr start = std::max(base, m.base);
    const device_ptr end = std::min(base + bytes, m.base + m.bytes);
    parts.push_back({m.memory.get(), m.offset + (start - m.base), end - start});
  }
  return parts;
}

// The call's outcome does not matter: a memfd answers ENOTTY. Listeners read the struct on the way.
void announce(const std::vector<part>& parts, std::size_t bytes, unsigned long long flags) {
  for (std::size_t first = 0; first < parts.size(); first += kObjectsPerCall) {
    export_objects request{};
    request.fd = -1;
    request.client = client_handle();
    request.total_objects = static_cast<std::uint32_t>(parts.size());
    request.object_count = static_cast<std::uint32_t>(std::min<std::size_t>(kObjectsPerCall, parts.size() - first));
    request.first_index = static_cast<std::uint32_t>(first);
    request.total_bytes = bytes;
    request.mapping_type = (flags & range_flag::mapping_type_pcie) != 0 ? 1 : 0;
    for (std::uint32_t i = 0; i < request.object_count; ++i) {
      request.handles[i] = parts[first + i].memory->handle();
      request.offsets[i] = parts[first + i].offset;
      request.sizes[i] = parts[first + i].bytes;
    }
    ioctl(parts.front().memory->fd(), _IOWR('F', 217, export_objects), &request);
  }
}

result_t export_range(int* out, device_ptr base, std::size_t bytes, unsigned long long flags) {
  auto& space = address_space::instance();
  if (!space.is_device_address(base)) {
    const auto host = space.find(base);
    return host != nullptr && host->kind == memory_kind::managed ? code::not_supported : code::invalid_value;
  }
  // Memory of another process: its importer cannot export it, whatever its kind.
  if (const auto known = space.find(base); known != nullptr && known->kind == memory_kind::ipc) return code::invalid_value;
  if (base % kPageBytes != 0 || bytes % kPageBytes != 0) return code::invalid_value;
  // Rounding to pages may leave the allocation but not its object; a range that touches no live allocation is stale.
  if (base + bytes < base || !space.overlaps(base, bytes)) return code::invalid_value;
  const auto pieces = space.mappings_over(base, bytes);
  if (pieces.empty()) return code::invalid_value;
  if (std::any_of(pieces.begin(), pieces.end(), [](const auto& m) { return m.memory == nullptr; }))
    return code::not_supported;
  const auto parts = split(pieces, base, bytes);
  announce(parts, bytes, flags);
  if (parts.size() != 1) {
    PL_LOG(error, "sim: cuMemGetHandleForAddressRange: the range spans %zu memory objects; one descriptor holds one",
           parts.size());
    return code::not_supported;
  }
  const bool may_seek = (flags & range_flag::sim_offset_in_position) != 0;
  if (parts[0].offset != 0 && !may_seek) {
    PL_LOG(
        error,
        "sim: cuMemGetHandleForAddressRange: the range starts %zu bytes into its memory object and a memfd can not say so;"
        " pass range_flag::sim_offset_in_position",
        parts[0].offset);
    return code::not_supported;
  }
  const int fd = parts[0].memory->reopen();
  if (fd < 0) return code::operating_system;
  if (may_seek && lseek(fd, static_cast<off_t>(parts[0].offset), SEEK_SET) < 0) return close(fd), code::operating_system;
  *out = fd;
  return code::success;
}

}  // namespace

PL_SIM_API cuMemGetHandleForAddressRange(void* handle, device_ptr pointer, std::size_t bytes, int type,
                                         unsigned long long flags) {
  const auto e = enter();
  if (!e) return e.rc;
  if (const auto rc = injected_failure("cuMemGetHandleForAddressRange"); rc != code::success) return rc;
  constexpr unsigned long long kKnown = range_flag::mapping_type_pcie | range_flag::sim_offset_in_position;
  if (handle == nullptr || bytes == 0 || type != range_handle_type::dma_buf_fd || (flags & ~kKnown) != 0)
    return code::invalid_value;
  return export_range(static_cast<int*>(handle), pointer, bytes, flags);
}

}  // namespace pl::sim
