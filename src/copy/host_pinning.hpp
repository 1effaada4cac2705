// SPDX-License-Identifier: Apache-2.0
// Host memory that Peerlane pinned for registrations. CUDA pins memory once, so a second registration of the same memory, by
// this copier or another one of the process, shares the first one's pinning, which ends with the last of them.
//
// Thread-safe. One lock for all: CUDA's own calls for it take tens of microseconds and exclude each other anyway.
#pragma once

#include <cstddef>

#include "base/status.hpp"
#include "copy/gpu_context.hpp"
#include "copy/host_memory.hpp"

namespace pl::copy {

class host_pinning {
 public:
  // Pins the pages of [pointer, pointer + bytes), or shares the pinning that they have already; nothing to end if it is the
  // application's. EBUSY: part of them is pinned, and not all.
  static result<host_pinning> make(const gpu_context& context, void* pointer, std::size_t bytes);

  host_pinning() = default;
  host_pinning(host_pinning&& other) noexcept;
  host_pinning& operator=(host_pinning&& other) noexcept;
  ~host_pinning() { end(); }
  void end() noexcept;

  const host_memory& memory() const noexcept { return memory_; }  // as the driver described it when it was made

 private:
  static result<host_pinning> try_make(const gpu_context& context, void* pointer, std::size_t bytes);

  host_memory memory_;
  struct pinned_pages* shared_ = nullptr;
};

}  // namespace pl::copy
