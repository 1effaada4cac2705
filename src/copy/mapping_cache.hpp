// SPDX-License-Identifier: Apache-2.0
// From a raw device pointer to the CPU address of the same byte: mappings that are kept between copies, and checked at each.
//
// Every lookup asks the driver what lies at the address now (one call, 0.1 us). An entry serves it only if it maps the same
// physical memory object at the same place, so memory that was freed, and allocated or mapped anew at the same address, can
// never be reached through the mapping made before.
//
// A mapping keeps its memory from going back to the GPU. So that freed memory does, entries whose memory is gone are dropped
// at every miss, when the cache is full, and by a background sweep within `sweep_ms`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backend.hpp"
#include "pointer.hpp"
#include "status.hpp"

namespace pl::copy {

class mapping_cache {
 public:
  struct options {
    std::uint64_t window_bytes = 32u << 20;     // most that one entry maps; a power of two, at least 2 MiB
    std::uint64_t capacity_bytes = 512u << 20;  // most that all entries map; the least recently used ones go first
    unsigned sweep_ms = 50;                     // 0: no background sweep
    std::string backend = "auto";
  };
  struct entry;

  // A mapping in use: it stays until this object ends, whatever happens to the memory.
  class hold {
   public:
    hold() = default;
    hold(hold&& other) noexcept;
    hold& operator=(hold&& other) noexcept;
    ~hold();
    char* data = nullptr;  // CPU address of the device pointer's byte
    arch::mapping_type type = arch::mapping_type::none;

   private:
    friend class mapping_cache;
    entry* from_ = nullptr;
  };

  explicit mapping_cache(options wanted);  // opens its backend at the first use
  ~mapping_cache();                        // no hold may be left
  mapping_cache(const mapping_cache&) = delete;
  mapping_cache& operator=(const mapping_cache&) = delete;

  // [pointer, pointer + bytes), which `info` (cu::inspect_pointer of `pointer`, just now) describes. Thread-safe.
  // ERANGE: larger than a window or leaves the memory object (several adjacent pieces), use another way to copy;
  // EINVAL: leaves the allocation; otherwise why this memory cannot be mapped (that reason is remembered for the object, so
  // asking again is cheap). A hit takes no system call.
  result<hold> find(const cu::driver_table& cuda, const cu::pointer_info& info, std::uint64_t pointer, std::size_t bytes);

  // Drops entries whose memory is gone; with `all`, every one not in use. Returns the bytes still mapped.
  std::uint64_t trim(bool all);

  struct statistics {
    std::uint64_t hits = 0, misses = 0, evictions = 0, stale = 0, refused = 0, mapped_bytes = 0;
  };
  statistics counts() const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace pl::copy
