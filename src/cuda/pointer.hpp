// SPDX-License-Identifier: Apache-2.0
// What CUDA knows of an address, and the context needed to ask more about it.
#pragma once

#include <cstdint>
#include <optional>

#include "checked_math.hpp"
#include "driver_table.hpp"
#include "status.hpp"

namespace pl::cu {

struct pointer_info {
  int device_ordinal = -1;
  context_t context = nullptr;       // null for VMM and pool memory
  unsigned long long buffer_id = 0;  // unique per allocation in the process, never reused
  address_range allocation;          // what the user allocated; for VMM the whole reserved range
  address_range object;              // the memory object mapped there: a 2 MiB block for small allocations; empty if unknown
  unsigned long long block_id = 0;   // identity of the physical block behind `object`, 0 if the driver does not tell
};

// One driver call, about 0.1 us. EINVAL with its own sentence for: an address CUDA does not know (freed, another
// process's, plain host memory), pinned host memory, managed memory. Needs cuInit to have been called; no context.
result<pointer_info> inspect_pointer(const driver_table& cuda, std::uint64_t pointer);

// The same for who needs no reason: nothing if it is not device memory. No allocation, no text.
std::optional<pointer_info> find_device_memory(const driver_table& cuda, std::uint64_t pointer) noexcept;

// Whether the allocation of that id (pointer_info::buffer_id, not 0) still is what lies at `pointer`: one driver call for
// one attribute. Says nothing of what is mapped into a VMM reservation, whose memory may change under one id.
bool is_still_buffer(const driver_table& cuda, std::uint64_t pointer, unsigned long long buffer_id) noexcept;

// Makes a context of the pointer's device current for the scope's life if none fits (the current context stays when it
// belongs to that device). Restores what was there before. For use on one thread.
class [[nodiscard]] context_scope {
 public:
  static result<context_scope> enter(const driver_table& cuda, int device_ordinal, context_t preferred);
  context_scope(context_scope&& other) noexcept;
  context_scope& operator=(context_scope&&) = delete;
  ~context_scope();

 private:
  context_scope(const driver_table& cuda, bool pushed, int retained_device)
      : cuda_(&cuda), pushed_(pushed), retained_device_(retained_device) {}
  const driver_table* cuda_;
  bool pushed_;
  int retained_device_;  // primary context reference to give back, or -1
};

}  // namespace pl::cu
