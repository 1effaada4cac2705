// SPDX-License-Identifier: Apache-2.0
// What CUDA knows of an address, and the context needed to ask more about it.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/checked_math.hpp"
#include "base/status.hpp"
#include "cuda/driver_table.hpp"

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

// Puts the calling thread into the relaxed stream capture mode for its life: in the modes that an application may be in
// while it captures (global, thread local), allocating, exporting and synchronizing would end the capture with an error.
class [[nodiscard]] relaxed_capture {
 public:
  explicit relaxed_capture(const driver_table& cuda) noexcept;
  relaxed_capture(relaxed_capture&& other) noexcept;
  relaxed_capture& operator=(relaxed_capture&&) = delete;
  ~relaxed_capture();

 private:
  const driver_table* cuda_;
  int mode_to_restore_;  // -1: this driver has no such thing
};

// Makes a context of the pointer's device current for the scope's life if none fits (the current context stays when it
// belongs to that device). Restores what was there before. For use on one thread, which is in the relaxed stream capture
// mode meanwhile.
class [[nodiscard]] context_scope {
 public:
  static result<context_scope> enter(const driver_table& cuda, int device_ordinal, context_t preferred);
  context_scope(context_scope&& other) noexcept;
  context_scope& operator=(context_scope&&) = delete;
  ~context_scope();

 private:
  context_scope(const driver_table& cuda, relaxed_capture capture, bool pushed, int retained_device)
      : capture_(std::move(capture)), cuda_(&cuda), pushed_(pushed), retained_device_(retained_device) {}
  relaxed_capture capture_;  // the last to go: giving a context back may be forbidden as well
  const driver_table* cuda_;
  bool pushed_;
  int retained_device_;  // primary context reference to give back, or -1
};

}  // namespace pl::cu
