// SPDX-License-Identifier: Apache-2.0
// All CUDA use of this library: it recognises device memory, and copies.
#pragma once

#include <optional>
#include <span>

#include "base/status.hpp"
#include "compat/mpi/load_watch.hpp"
#include "compat/mpi/shared_segment.hpp"
#include "compat/mpi/staging_pool.hpp"
#include "copy/completion.hpp"
#include "copy/memory_exchange.hpp"
#include "copy/transfer.hpp"
#include "cuda/pointer.hpp"

namespace pl::mpi {

namespace detail {
bool query_driver(const void* pointer) noexcept;  // driver_is_there() has said yes
}

// Whether MPI's CPU code must not touch this address. One driver call of 0.1 us once libcuda is loaded. Nothing is
// remembered about addresses, since only that same call could detect memory that was freed and reused. In a forked
// child of a process that uses CUDA, whose driver cannot answer, an address counts as device memory if it cannot be
// read: copies of it are then refused.
inline bool is_device_memory(const void* pointer) noexcept {
  return pointer != nullptr && driver_is_there() && detail::query_driver(pointer);
}

// The driver's information about device memory; empty for other memory. Valid while an operation on that memory is
// pending, that is, as long as the caller may not free it.
std::optional<cu::pointer_info> device_info(const void* pointer) noexcept;

// Host memory for a copy of what begins at `device`; `sparse`: most of it will not be touched.
result<staging_pool::block> take_staging(std::uint64_t device, std::size_t bytes, bool sparse);

// Complete on return. EACCES in a forked child whose parent uses CUDA; otherwise as copy::planner. `device`: the known
// information about a single copy's device side, for which the driver is then not asked; may be null.
status copy_all(std::span<const copy::transfer> list, const cu::pointer_info* device);

// Begins the copies; their memory must stay until they have ended.
result<copy::completion> begin_copies(std::span<const copy::transfer> list);

// Hands memory over for another process of this host, whose DMA channels read it (copy/memory_exchange.hpp). Empty if
// that is impossible, or channels are not wanted.
std::optional<copy::memory_exchange::offer> hand_over(address_range bytes);
// Reads what another process has handed over into device memory of this one. Returns false, and moves nothing, if that
// is impossible.
bool pull(const copy::memory_exchange::owner& exporter, std::uint64_t source, std::uint64_t destination,
          std::uint64_t bytes);

// Whether all of these bytes belong to one allocation of device memory.
bool is_within_allocation(std::uint64_t device, std::size_t bytes) noexcept;

// Pins shared memory for the GPU of `device`, unless that was tried before. Memory that cannot be pinned is copied all
// the same.
void pin_for(std::uint64_t device, shared_segment& memory) noexcept;

// Releases all host and GPU resources. No other call of this library may be pending; the library may be used again.
void close_devices() noexcept;

// Reports the first failure of a process on stderr (an MPI error code says little), and later ones only in the log.
void complain(const char* description, const failure& reason) noexcept;

}  // namespace pl::mpi
