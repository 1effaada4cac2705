// SPDX-License-Identifier: Apache-2.0
// Small allocations packed into larger objects: cuMemAlloc below 1 MiB (2 MiB blocks) and memory pools (32 MiB chunks).
//
// First fit, lowest address first, so a freed place is taken again by the next allocation that fits: stale pointers in
// the application then meet somebody else's data, as on a real GPU. A chunk that becomes empty is dropped with its
// object (unless kept), so that new memory never shows bytes which a CPU mapping of the old object still sees.
#pragma once

#include <map>
#include <mutex>

#include "sim/address_space.hpp"

namespace pl::sim {

constexpr std::size_t kSmallStep = 512;  // alignment of packed allocations, as real drivers

class heap {
 public:
  heap(int device_ordinal, std::size_t chunk_bytes) : device_ordinal_(device_ordinal), chunk_bytes_(chunk_bytes) {}

  result_t allocate(std::size_t bytes, device_ptr& out);
  // `bytes` as given to allocate. Empty chunks go as long as more than keep_bytes stay.
  void free(device_ptr pointer, std::size_t bytes, std::size_t keep_bytes);
  void trim(std::size_t keep_bytes);
  std::size_t reserved_bytes();

 private:
  struct chunk {
    std::size_t bytes = 0;
    std::map<device_ptr, std::size_t> holes;
  };
  void drop_empty_locked(std::size_t keep_bytes);

  const int device_ordinal_;
  const std::size_t chunk_bytes_;
  std::mutex mutex_;
  std::map<device_ptr, chunk> chunks_;
  std::size_t reserved_bytes_ = 0;
};

// A new object with an address range of its own, mapped. The base, or 0 with `reason`.
device_ptr map_new_object(int device_ordinal, std::size_t bytes, result_t& reason);
// Undoes map_new_object.
void unmap_object(device_ptr base, std::size_t bytes);

}  // namespace pl::sim
