// SPDX-License-Identifier: Apache-2.0
// Whether CUDA knows a piece of host memory as pinned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/checked_math.hpp"
#include "copy/gpu_context.hpp"
#include "cuda/driver_table.hpp"

namespace pl::copy {

struct host_memory {
  bool is_pinned = false;         // all of it lies in one pinned allocation or registration
  cu::device_ptr device_ptr = 0;  // the GPU's address of its first byte, if pinned
  // Of the allocation or registration, in the CPU's addresses; empty: the driver tells them in the GPU's only.
  address_range allocation;
  unsigned long long buffer_id = 0;  // of it, unique in the process; 0: the driver does not tell
  // `allocation` is a range of several registrations (a host pool's): the rest describes the first, ask for the others.
  bool is_in_pieces = false;
};

// Pages that are pinned for the time of one copy. Until it ends, inspect_host() takes them for pageable: the copies of other
// threads cannot count on a pinning that ends without them. Name the pages before they are pinned, and end it after they are
// unpinned.
class [[nodiscard]] passing_pinning {
 public:
  explicit passing_pinning(address_range pages);
  ~passing_pinning();
  passing_pinning(const passing_pinning&) = delete;
  passing_pinning& operator=(const passing_pinning&) = delete;
  static bool overlaps(address_range range) noexcept;

 private:
  address_range pages_;
};

// One driver call, about 0.1 us. Memory that CUDA does not know, and managed memory (which may move), counts as pageable.
// Never fails. On a thread without a current context the driver knows pinned memory but not the GPU's address of it: it is
// asked again inside `context` then, if that is given.
host_memory inspect_host(const cu::driver_table& cuda, const void* pointer, std::size_t bytes,
                         const gpu_context* context = nullptr) noexcept;

}  // namespace pl::copy
