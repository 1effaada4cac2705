// SPDX-License-Identifier: Apache-2.0
// One buffer argument of an MPI call: the caller's own, or host memory that replaces device memory. The stand-in has
// the same layout, so all other arguments of the call stay the same.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "compat/mpi/device_memory.hpp"
#include "compat/mpi/layout.hpp"

namespace pl::mpi {

// `count` elements from `offset` bytes behind the buffer's address.
struct part {
  std::ptrdiff_t offset = 0;
  MPI_Count count = 0;
  MPI_Datatype type;
};

// Reports a buffer that cannot be used, and returns the MPI code for it.
int report_buffer(const char* description, const failure& reason);

// Whether any of the addresses that MPI_BOTTOM with these parts stands for is device memory.
bool any_on_device(std::span<const part> absolute);

// Whether this argument of a call is device memory. MPI_BOTTOM stands for the addresses inside the type.
template <class Count>
bool on_device(const void* buffer, Count count, MPI_Datatype type) {
  if (!driver_is_there() || count <= 0) return false;
  if (buffer != MPI_BOTTOM) [[likely]]
    return buffer != MPI_IN_PLACE && detail::query_driver(buffer);
  const part one{0, count, type};
  return any_on_device({&one, 1});
}
// The same for an argument that has no type, or cannot be MPI_BOTTOM.
inline bool on_device(const void* buffer) {
  return driver_is_there() && buffer != MPI_BOTTOM && buffer != MPI_IN_PLACE && detail::query_driver(buffer);
}

// Every int is an MPI error code. Movable; not thread-safe.
class staged {
 public:
  staged() = default;
  // The buffer as it is. For arguments that are host memory or that MPI does not look at.
  explicit staged(const void* buffer) : pointer_(const_cast<void*>(buffer)) {}

  // Takes the argument apart if `buffer` is device memory and the parts hold any byte; the stand-in is made by a second
  // call.
  int describe(const void* buffer, std::span<const part> buffer_parts);
  int describe(const void* buffer, MPI_Count count, MPI_Datatype type) {
    const part one{0, count, type};
    return describe(buffer, {&one, 1});
  }
  // `is_header_expected`: of a large one most likely the first page alone is touched.
  int make_host_copy(bool is_header_expected = false);
  // Makes the stand-in if `buffer` is device memory and the parts hold any byte.
  int attach(const void* buffer, std::span<const part> parts) {
    const int code = describe(buffer, parts);
    return code == MPI_SUCCESS ? make_host_copy() : code;
  }
  int attach(const void* buffer, MPI_Count count, MPI_Datatype type) {
    const part one{0, count, type};
    return attach(buffer, {&one, 1});
  }
  // Plain bytes (MPI_PACKED).
  int attach_bytes(const void* buffer, std::size_t bytes);

  void* pointer() const noexcept { return pointer_; }
  bool is_host_copy() const noexcept { return !runs_.empty(); }
  // For a described argument: its device addresses, and how many bytes they cover.
  const pieces& rows() const noexcept { return runs_; }
  std::size_t bytes() const noexcept { return bytes_; }
  // Whether all of it lies within allocations.
  bool is_readable() const;
  // The first `bytes` in the stand-in; false: it has not so many.
  bool peek(void* out, std::size_t bytes) const;

  // Device memory to the stand-in, and back: all of it, or the first `bytes` in the order of the types.
  int load();
  int store();
  int store_first(std::size_t bytes);
  // For a persistent request, whose memory may be another allocation's at the next start: copies ask the driver again.
  void forget_device() noexcept { device_.reset(); }
  // A persistent collective reads this buffer when it is started.
  void read_at_start() noexcept { is_read_at_start_ = true; }
  bool is_read_at_start() const noexcept { return is_read_at_start_; }
  // At most this many bytes are ever stored.
  void limit_store(std::size_t bytes) noexcept { limit_ = bytes; }

 private:
  int take(const void* buffer, pieces&& runs);
  int copy_runs(const pieces& runs, bool to_device) const;

  void* pointer_ = nullptr;
  std::ptrdiff_t to_host_ = 0;              // from a device address to the stand-in's
  pieces runs_;                             // offsets are device addresses
  std::optional<cu::pointer_info> device_;  // what the driver said of the first run when the operation began
  std::size_t bytes_ = 0;
  std::size_t limit_ = SIZE_MAX;
  bool is_read_at_start_ = false;
  staging_pool::block memory_;
};

// The first `bytes` that `rows`, moved by `shift`, name in host memory; false: they name fewer.
bool gather(const pieces& rows, std::ptrdiff_t shift, void* out, std::size_t bytes);

// Number of bytes that a receive has received.
std::size_t received_bytes(const MPI_Status& status);

}  // namespace pl::mpi
