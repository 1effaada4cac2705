// SPDX-License-Identifier: Apache-2.0
// Host memory that Peerlane has pinned for registrations. CUDA pins memory only once, so a second registration of the
// same memory, by this copier or another one in the process, shares the pinning, which ends with the last registration.
//
// Thread-safe. A single lock suffices: CUDA's own calls for it take tens of microseconds and exclude each other anyway.
#pragma once

#include <cstddef>

#include "base/status.hpp"
#include "copy/gpu_context.hpp"
#include "copy/host_memory.hpp"

namespace pl::copy {

class host_pinning {
 public:
  // Pins the pages of [pointer, pointer + bytes), or shares an existing pinning; if that is the application's, it is
  // left alone later. EBUSY: part of them is pinned, but not all.
  static result<host_pinning> make(const gpu_context& context, void* pointer, std::size_t bytes);

  host_pinning() = default;
  host_pinning(host_pinning&& other) noexcept;
  host_pinning& operator=(host_pinning&& other) noexcept;
  ~host_pinning() { end(); }
  void end() noexcept;

  const host_memory& memory() const noexcept { return memory_; }  // the driver's description when it was made

 private:
  static result<host_pinning> try_make(const gpu_context& context, void* pointer, std::size_t bytes);

  host_memory memory_;
  struct pinned_pages* shared_ = nullptr;
};

}  // namespace pl::copy
