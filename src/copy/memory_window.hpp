// SPDX-License-Identifier: Apache-2.0
// Which physical memory is at an address, and which range around it one cached mapping covers: what mapping_cache
// compares.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/checked_math.hpp"
#include "cuda/pointer.hpp"

namespace pl::copy {

// Must be equal for an earlier mapping to show the memory that a pointer names now.
struct memory_identity {
  int device = -1;
  bool is_block = false;      // whether the driver identifies physical blocks
  unsigned long long id = 0;  // of the block, otherwise of the buffer
  address_range place;        // where the block is mapped, otherwise the allocation
  bool operator==(const memory_identity& other) const {
    return id == other.id && place.begin == other.place.begin && place.size_bytes == other.place.size_bytes &&
           device == other.device && is_block == other.is_block;
  }
};

// The block's id names physical memory for the life of the process, and `place` distinguishes the same block mapped
// elsewhere, or in part (cuMemMap has no other freedom: its offset must be 0). A small allocation that is freed and
// allocated again in the same block is still served, correctly, because the memory is the same. Drivers before CUDA 12
// do not identify blocks; there the buffer's id distinguishes memory of cuMemAlloc.
inline memory_identity identity_of(const cu::pointer_info& info) {
  if (info.block_id != 0 && info.object.size_bytes != 0) return {info.device_ordinal, true, info.block_id, info.object};
  return {info.device_ordinal, false, info.buffer_id, info.allocation};
}

// Without a block's id, other physical memory that is mapped at the address of a reservation may look the same.
inline bool is_recognisable(const memory_identity& id, const cu::pointer_info& info) {
  return id.is_block || (id.id != 0 && info.context != nullptr);
}

// The part of a request's window that one pin may cover.
struct window {
  address_range exact;  // within the memory object and the allocation
  address_range pages;  // rounded to the host's pages: the key of entries
};

// The same for all requests in one window. Nothing if the request leaves the object or is larger than half a window; up
// to that size, a request that crosses the border of a window lies in the one half a window further on.
inline std::optional<window> window_around(const cu::pointer_info& info, address_range wanted, std::uint64_t window_bytes) {
  std::uint64_t low = info.allocation.begin, high = info.allocation.end();
  if (info.object.size_bytes != 0) {
    low = std::max(low, info.object.begin);
    high = std::min(high, info.object.end());
  }
  if (wanted.begin < low || wanted.end() > high || wanted.size_bytes > window_bytes / 2) return std::nullopt;
  std::uint64_t begin = align_down(wanted.begin, window_bytes);
  if (wanted.end() - begin > window_bytes) begin += window_bytes / 2;
  const std::uint64_t end = begin + std::min(window_bytes, high - begin);
  begin = std::max(begin, low);
  const std::uint64_t first_page = align_down(begin, kHostPageBytes);
  const std::uint64_t last_page = align_down(end + kHostPageBytes - 1, kHostPageBytes);
  return window{{begin, end - begin}, {first_page, last_page - first_page}};
}

}  // namespace pl::copy
