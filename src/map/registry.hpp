// SPDX-License-Identifier: Apache-2.0
// Sessions and regions: what gdr_t / gdr_mh_t and peerlane_session_t / peerlane_mapping_t point to.
//
// Both C interfaces are thin skins over these functions. Handles are addresses of slots (slot_arena.hpp), so every call can
// check any bit pattern it is given without a lock; copies read one slot and nothing else. After fork the parent's objects
// answer EACCES in the child (fork_guard.hpp), which may open its own.
//
// Locks, in this order: a session's mutex (its list of regions) before nothing; a region's stripe (state changes of one
// region, held across system calls) before nothing. No lock is taken by find_region, get_info and the copies.
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

// The first 48 bytes are struct gdr of GDRCopy 2.6: its own test program reads and pokes them.
struct alignas(64) session {
  int fd = -1;  // a descriptor that may be sent and closed by anybody without harm to us
  int pad0 = 0;
  void* list_head = nullptr;
  std::uint64_t page_size = kGpuPageBytes;
  std::uint64_t page_mask = ~std::uint64_t{kGpuPageBytes - 1};
  std::uint8_t page_shift = 16;
  std::uint8_t pad1[3] = {};
  std::uint32_t gdrdrv_version = 0;
  std::int32_t backend_kind = 0;  // 0 gdrdrv-like, 1 dma-buf
  std::int32_t pad2 = 0;
  // ---- ours from here
  std::atomic<std::uint32_t> epoch{0};  // process that owns it; 0 = not open
  std::atomic<std::uint32_t> busy{0};   // calls inside; bit 31: closing
  std::uint64_t fd_inode = 0;           // what `fd` names, with fd_device: an application may close it and reuse the number
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
  std::atomic<std::uint64_t> data_bytes{0};  // bytes from there that copies may touch
  std::atomic<arch::mapping_type> type{arch::mapping_type::none};
  std::uint32_t pad = 0;
  // Cold.
  std::uint64_t device_ptr = 0;  // as requested
  std::uint64_t size_bytes = 0;  // as requested
  std::uint64_t pin_ticks = 0;
  std::atomic<session*> owner{nullptr};
  std::unique_ptr<pinned_memory> pin;
  cpu_view view;
};
static_assert(sizeof(region) == 128, "GDRCopy's test reads 104 bytes behind a handle; slots are found by masking");

// ---- Sessions

result<session*> open_session(const backend_environment& environment, const std::string& backend_name);
// Mappings that are left count as forgotten (backend.hpp).
status close_session(session* handle);

// EINVAL unless `handle` is an open session of this process; EACCES in a forked child. Any bit pattern is allowed.
int check_session(const session* handle) noexcept;

// What a session's backend is. Unlike handle->owner it may be asked for while another thread closes the session.
struct session_traits {
  const char* backend_name;  // static
  bool is_persistent;
  bool supports_force_pcie;
};
result<session_traits> traits_of(session* handle);

// ---- Regions (slow path: may allocate, lock, call the kernel)

result<region*> pin_region(session* handle, const pin_request& request);
// The first `size_bytes` (rounded up to the host page) of the pinned range. `wanted` none = natural type. EAGAIN if mapped.
status map_region(session* handle, region* target, std::size_t size_bytes, arch::mapping_type wanted);
// The whole pinned range; copies are confined to the bytes that were asked for, `data` is the first of them.
status map_region_exactly(session* handle, region* target);
status unmap_region(session* handle, region* target);
// pin_region and map_region_exactly, which another thread's close_session waits for; on failure, one for lack of memory
// included, nothing is left of either.
result<region*> pin_and_map_region(session* handle, const pin_request& request);
// Unmaps if needed: `mode` says whether the caller asked for it or left the mapping behind. The handle is dead
// afterwards.
status unpin_region(session* handle, region* target, unmapping mode = unmapping::forgotten);
result<bool> region_revoked(session* handle, region* target);

// ---- Hot path

// 0, EINVAL or EACCES for any bit pattern; lock-free.
int check_region(const region* handle) noexcept;

// Copies through a mapped region; `mapped` is a CPU address inside it. EINVAL if not mapped, not inside, or the host
// pointer is null; size 0 copies nothing and asks only for a mapping. check_copy_range is these checks alone.
int check_copy_range(const region* target, const void* mapped, const void* host, std::size_t size_bytes) noexcept;
int region_write(region* target, void* mapped, const void* source, std::size_t size_bytes, bool fence) noexcept;
int region_read(region* target, void* destination, const void* mapped, std::size_t size_bytes) noexcept;
// Counts a read that went another way than region_read.
void count_region_read(std::size_t size_bytes) noexcept;
int region_fill(region* target, void* mapped, std::uint8_t value, std::size_t size_bytes) noexcept;
int region_flush(region* target) noexcept;

// ---- Message of this thread's last failure

const char* last_error() noexcept;
// Keeps the message and returns the code.
int fail(const failure& reason) noexcept;
int fail(int code, const char* message) noexcept;

}  // namespace pl
