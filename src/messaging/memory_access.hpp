// SPDX-License-Identifier: Apache-2.0
// Classifies the buffer of a message as host or device memory, and copies its bytes.
//
// Owns: a cache of the driver's answers. Threads: the messenger's lock guards all calls.
// Errors: EINVAL for memory that cannot be accessed, else those of the copy planner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/checked_math.hpp"
#include "copy/planner.hpp"
#include "cuda/pointer.hpp"
#include "messaging/host_ranges.hpp"
#include "messaging/messenger.hpp"

namespace pl::messaging {

struct memory {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  bool is_device = false;
  // The driver's description of `address` at the start of the operation, so that copies need not query it again; the buffer
  // must stay allocated until the operation ends. No device: not queried, or the allocation may change (a window).
  cu::pointer_info device;

  // Leaves `device` unchanged, because it is not used for host memory.
  void set_host(std::uint64_t new_address, std::size_t new_bytes) noexcept {
    address = new_address;
    bytes = new_bytes;
    is_device = false;
  }
};

// How device memory may be accessed.
enum class touch : std::uint8_t {
  any,      // the planner decides
  cpu_only  // CPU loads and stores through the mapping: another process uses the same GPU, and a copy engine would cost both
            // of them a context switch (about 150 us)
};

class memory_access {
 public:
  // The pointers must outlive this object. Both null: host memory only.
  memory_access(const cu::driver_table* cuda, copy::planner* planner) : cuda_(cuda), planner_(planner) {}

  // Classifies a buffer. Queries the driver at most once for each message, and not at all for registered memory or memory in
  // host_ranges. EINVAL: device memory without a GPU, or bytes without an address or that leave the address space.
  result<memory> inspect(const buffer& data);
  // The same for a buffer that others will access later, so that a wrong kind is found now and not by a fault of this
  // process.
  result<memory> inspect_lasting(const buffer& data);
  // True: the buffer is host memory or empty, and inspect() would not query the driver.
  bool is_known_host(const buffer& data) noexcept {
    if (data.bytes == 0) return true;
    if (data.address == 0 || data.kind == memory_kind::device || !checked_add(data.address, data.bytes)) return false;
    return planner_ == nullptr || data.kind == memory_kind::host || host_.contains(data.address, data.bytes);
  }
  // Copies bytes [offset, offset + bytes) of `source` to host memory, or of `destination` from host memory. The copy is
  // complete on return.
  status read(const memory& source, std::size_t offset, void* destination, std::size_t bytes, touch access) const;
  status write(const memory& destination, std::size_t offset, const void* source, std::size_t bytes, touch access) const;
  // Copies between two memories of this process; complete on return.
  status move(const memory& destination, const memory& source, std::size_t bytes) const;

  bool has_gpu() const noexcept { return planner_ != nullptr; }
  const cu::driver_table* cuda() const noexcept { return cuda_; }
  copy::planner* planner() const noexcept { return planner_; }

 private:
  std::optional<cu::pointer_info> device_memory_at(std::uint64_t address, std::size_t bytes) noexcept;
  status copy(const copy::transfer& transfer, const memory& device_side, touch access) const;
  const cu::driver_table* cuda_;
  copy::planner* planner_;
  host_ranges host_;
  // Cache of the driver's answers. One attribute query shows whether an entry is still valid.
  std::array<cu::pointer_info, 64> recent_;
};

}  // namespace pl::messaging
