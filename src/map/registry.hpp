// SPDX-License-Identifier: Apache-2.0
// Sessions and regions: what gdr_t / gdr_mh_t and peerlane_session_t / peerlane_mapping_t point to.
//
// Both C interfaces are thin wrappers around these functions. Handles are addresses of slots (slot_arena.hpp), so every
// call can check any bit pattern without a lock, and copies read only one slot. After a fork the parent's objects
// answer EACCES in the child (fork_guard.hpp), which may open its own.
//
// Locks: a session's mutex (its list of regions), and a region's stripe (state changes of one region, held across
// system calls). No lock is taken while either is held. check_region and the copies take none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arch/copy_dispatch.hpp"
#include "base/status.hpp"
#include "map/backend.hpp"
#include "os/fork_guard.hpp"

namespace pl {

struct region;

// The first 48 bytes are struct gdr of GDRCopy 2.6, because its own test program reads and modifies them.
struct alignas(64) session {
  int fd = -1;  // a descriptor that anybody may send and close without harm to us
  int pad0 = 0;
  void* list_head = nullptr;
  std::uint64_t page_size = kGpuPageBytes;
  std::uint64_t page_mask = ~std::uint64_t{kGpuPageBytes - 1};
  std::uint8_t page_shift = 16;
  std::uint8_t pad1[3] = {};
  std::uint32_t gdrdrv_version = 0;
  std::int32_t backend_kind = 0;  // 0: like gdrdrv, 1: dma-buf
  std::int32_t pad2 = 0;
  // ---- our fields
  std::atomic<std::uint32_t> epoch{0};  // process that owns it; 0: not open
  std::atomic<std::uint32_t> busy{0};   // number of calls in progress; bit 31: closing
  std::uint64_t fd_inode = 0;           // with fd_device, the file of `fd`: an application may close it and reuse the number
  std::uint64_t fd_device = 0;
  std::unique_ptr<backend> owner;
  std::mutex mutex;
  std::vector<region*> regions;
};
static_assert(sizeof(session) <= 256);
struct alignas(256) session_slot : session {};
static_assert(sizeof(session_slot) == 256);

enum class region_state : std::uint32_t { free = 0, pinned = 1, mapped = 2 };

struct alignas(128) region {
  // Hot: what a copy reads. Written before `state` becomes mapped.
  std::atomic<region_state> state{region_state::free};
  std::atomic<std::uint32_t> epoch{0};
  std::atomic<char*> data{nullptr};          // CPU address of the user's first byte
  std::atomic<std::uint64_t> data_bytes{0};  // bytes from there that copies may access
  std::atomic<arch::mapping_type> type{arch::mapping_type::none};
  std::uint32_t pad = 0;
  // Rarely used.
  std::uint64_t device_ptr = 0;  // as requested
  std::uint64_t size_bytes = 0;  // as requested
  std::uint64_t pin_ticks = 0;
  std::atomic<session*> owner{nullptr};
  std::unique_ptr<pinned_memory> pin;
  cpu_view view;
  // What lay at `device_ptr` when it was pinned, for who copies by device address; 0: not known (compat/gdrapi).
  std::uint64_t buffer_id = 0;
  std::uint64_t block_id = 0;
};
static_assert(sizeof(region) == 128, "GDRCopy's test reads 104 bytes behind a handle; slots are found by masking");

// ---- Sessions

result<session*> open_session(const backend_environment& environment, const std::string& backend_name);
// Remaining mappings count as forgotten (backend.hpp).
status close_session(session* handle);

// EINVAL unless `handle` is an open session of this process; EACCES in a forked child. Any bit pattern is allowed.
int check_session(const session* handle) noexcept;

// Properties of a session's backend. Unlike handle->owner, they may be queried while another thread closes the session.
struct session_traits {
  const char* backend_name;  // static storage
  bool is_persistent;
  bool supports_force_pcie;
};
result<session_traits> traits_of(session* handle);

// ---- Regions (slow path: may allocate, lock, call the kernel)

result<region*> pin_region(session* handle, const pin_request& request);
// Maps the first `size_bytes` (rounded up to the host page) of the pinned range. `wanted` none: the natural type.
// EAGAIN if already mapped.
status map_region(session* handle, region* target, std::size_t size_bytes, arch::mapping_type wanted);
// Maps the whole pinned range; copies are confined to the requested bytes, the first of which is `data`.
status map_region_exactly(session* handle, region* target);
status unmap_region(session* handle, region* target);
// pin_region and map_region_exactly as one call, which another thread's close_session waits for. On failure, including
// a lack of memory, nothing is left of either.
result<region*> pin_and_map_region(session* handle, const pin_request& request);
// Unmaps if needed: `mode` says whether the caller requested it or left the mapping behind. The handle is dead
// afterwards.
status unpin_region(session* handle, region* target, unmapping mode = unmapping::forgotten);
result<bool> region_revoked(session* handle, region* target);

// ---- Hot path

// 0, EINVAL or EACCES for any bit pattern; lock-free.
int check_region(const region* handle) noexcept;

// Copies through a mapped region; `mapped` is a CPU address inside it. EINVAL if it is not mapped, the range is not
// inside, or the host pointer is null. Size 0 copies nothing and only requires a mapping. check_copy_range does only
// these checks.
int check_copy_range(const region* target, const void* mapped, const void* host, std::size_t size_bytes) noexcept;
int region_write(region* target, void* mapped, const void* source, std::size_t size_bytes, bool fence) noexcept;
int region_read(region* target, void* destination, const void* mapped, std::size_t size_bytes) noexcept;
// Counts a read that did not use region_read.
void count_region_read(std::size_t size_bytes) noexcept;
int region_fill(region* target, void* mapped, std::uint8_t value, std::size_t size_bytes) noexcept;
int region_flush(region* target) noexcept;

// ---- Message of this thread's last failure

const char* last_error() noexcept;
// Keeps the message and returns the code.
int fail(const failure& reason) noexcept;
int fail(int code, const char* message) noexcept;

}  // namespace pl
