// SPDX-License-Identifier: Apache-2.0
// Checks a request for device memory and splits it into the page-granular pieces that a backend pins.
#pragma once

#include <vector>

#include "base/checked_math.hpp"
#include "base/status.hpp"
#include "cuda/pointer.hpp"

namespace pl {

// How strictly a request must lie inside its allocation.
enum class range_rule {
  exact,    // within one allocation, or over adjacent mapped cuMemCreate pieces: peerlane::map
  granule,  // first and last 64 KiB granule must touch our memory; GDRCopy's clients round outwards: gdr_pin_buffer
};

// Part of a pin that lies in one memory object.
struct range_piece {
  address_range range;             // page granular
  std::uint64_t object_begin = 0;  // device address of the object's byte 0; 0 if the driver does not report it
  std::uint64_t object_bytes = 0;
  unsigned long long block_id = 0;  // identity of the object, 0 if unknown
};

struct pin_plan {
  address_range requested;
  address_range rounded;  // rounded to `granule_bytes`: what will be pinned
  address_range owned;    // first part of the request that is certainly the user's (clients round outwards)
  int device_ordinal = -1;
  cu::context_t context = nullptr;
  std::vector<range_piece> pieces;  // in address order, together exactly `rounded`
};

// EINVAL: size 0, address 0, overflow, no device memory, managed or host memory, beyond the allocation, several GPUs.
result<pin_plan> plan_pin(const cu::driver_table& cuda, address_range requested, std::uint64_t granule_bytes,
                          range_rule rule);

}  // namespace pl
