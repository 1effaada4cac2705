// SPDX-License-Identifier: Apache-2.0
// Whether CUDA knows a range of host memory as pinned.
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
  // The allocation or registration in the CPU's addresses; empty if the driver reports only the GPU's.
  address_range allocation;
  unsigned long long buffer_id = 0;  // of the allocation, unique in the process; 0: the driver does not report it
  // `allocation` is a range of several registrations (a host pool's): the other fields describe the first; ask again
  // for the others.
  bool is_in_pieces = false;
};

// Pages that are pinned for the duration of one copy. Meanwhile inspect_host() reports them as pageable, because the
// copies of other threads cannot rely on a pinning that may end. Create it before the pages are pinned, and destroy it
// after they are unpinned.
class [[nodiscard]] concurrent_pin {
 public:
  explicit concurrent_pin(address_range pages);
  ~concurrent_pin();
  concurrent_pin(const concurrent_pin&) = delete;
  concurrent_pin& operator=(const concurrent_pin&) = delete;
  static bool overlaps(address_range range) noexcept;

 private:
  address_range pages_;
};

// One driver call, about 0.1 us. Memory that CUDA does not know counts as pageable, and so does managed memory, which
// may move. Never fails. On a thread without a current context the driver does not return the GPU's address of pinned
// memory: if `context` is given, it is asked again in that context.
host_memory inspect_host(const cu::driver_table& cuda, const void* pointer, std::size_t bytes,
                         const gpu_context* context = nullptr) noexcept;

}  // namespace pl::copy
