// SPDX-License-Identifier: Apache-2.0
// From a raw device pointer to the CPU address of the same byte: mappings are kept between copies, and checked at each
// lookup.
//
// Every lookup asks the driver what is at the address now (one call, 0.1 us). An entry is used only if it maps the same
// physical memory object at the same place, so memory that was freed, and allocated or mapped again at the same
// address, can never be reached through the earlier mapping.
//
// A mapping prevents its memory from being returned to the GPU. So entries whose memory was freed are dropped at every
// miss, and by a background sweep within `sweep_ms`.
//
// Entries are windows: the part of a memory object, and of the user's allocation, that lies in one window_bytes-aligned
// stretch of addresses. A request that crosses such a border gets the window half a window further on, so every request
// of up to half a window fits into one, and neighbours share entries.
//
// After a fork, the child's finds answer EACCES, and its destructors leave the parent's mappings alone (the child has
// not inherited them).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "cuda/pointer.hpp"
#include "map/backend.hpp"

namespace pl::copy {

class mapping_cache {
 public:
  struct options {
    std::uint64_t window_bytes = 32u << 20;  // maximum that one entry maps; a power of two, at least 2 MiB
    // Maximum that all entries map, at least a window; the least recently used are dropped.
    std::uint64_t capacity_bytes = 512u << 20;
    unsigned sweep_ms = 50;  // 0: no background sweep
    std::string backend = "auto";
    // For caches of another address space than the CPU's (channel_memory.hpp): opens what maps into it, instead of
    // `backend`. Its mappings do not count among the CPU's.
    std::function<result<std::unique_ptr<pl::backend>>(const cu::driver_table&)> open;
    std::function<bool()> also_sweep;  // called at each sweep; returns true if nothing is left to check
  };
  struct entry;

  // A mapping in use: it stays until this object is destroyed, whatever happens to the memory.
  class hold {
   public:
    hold() = default;
    hold(hold&& other) noexcept
        : data(std::exchange(other.data, nullptr)), type(other.type), entry_(std::exchange(other.entry_, nullptr)) {}
    hold& operator=(hold&& other) noexcept {
      std::swap(data, other.data);
      std::swap(type, other.type);
      std::swap(entry_, other.entry_);
      other.end();
      return *this;
    }
    ~hold() { end(); }
    // Releases the mapping early.
    void end() noexcept {
      data = nullptr;
      if (entry_ != nullptr) give_back(std::exchange(entry_, nullptr));
    }
    char* data = nullptr;  // CPU address of the device pointer's byte
    arch::mapping_type type = arch::mapping_type::none;

   private:
    friend class mapping_cache;
    static void give_back(entry* held) noexcept;
    entry* entry_ = nullptr;
  };

  explicit mapping_cache(options wanted);  // opens its backend at first use
  ~mapping_cache();                        // precondition: no hold is left
  mapping_cache(const mapping_cache&) = delete;
  mapping_cache& operator=(const mapping_cache&) = delete;

  // Maps [pointer, pointer + bytes), which `info` (a fresh result of cu::inspect_pointer for `pointer`) describes.
  // Thread-safe; `cuda` must outlive the cache. A hit takes no system call and no allocation, except with a backend
  // whose mappings can be revoked (gdrdrv without persistent mapping: one ioctl, because a revoked mapping faults).
  //   ERANGE  more than half a window, or beyond the memory object (several adjacent pieces): use another method to copy
  //   EINVAL  no bytes, or beyond the allocation
  //   EBUSY   copies in progress hold all of the capacity
  //   EAGAIN  the memory changed while it was being mapped: the application frees what it copies
  //   EACCES  a forked child
  //   ENOTSUP the driver does not distinguish this memory from what may later be at its address (VMM and pools before
  //           CUDA 12)
  // Otherwise the reason why the backend cannot map it. The failure is remembered for the object, so that asking again
  // is cheap: permanently if the memory is the reason (ENOTSUP, EINVAL, EPERM), for kRetryMs if it may pass.
  result<hold> find(const cu::driver_table& cuda, const cu::pointer_info& info, std::uint64_t pointer, std::size_t bytes);
  static constexpr unsigned kRetryMs = 100;

  // Drops entries whose memory is gone; with `all`, drops every unused one and forgets failures. Returns the bytes that
  // are still mapped.
  std::uint64_t trim(bool all);

  struct statistics {
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;     // had to be mapped, or could not be
    std::uint64_t evictions = 0;  // entries dropped to make room
    std::uint64_t stale = 0;      // entries whose memory was gone
    std::uint64_t refused = 0;    // answered by a remembered failure
    std::uint64_t entries = 0;
    std::uint64_t mapped_bytes = 0;  // including entries that were dropped and are still held
  };
  statistics counts() const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace pl::copy
