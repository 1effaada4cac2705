// SPDX-License-Identifier: Apache-2.0
// Interface of a ring that kernels post into (<peerlane/device.cuh>). A copy engine or the CPU executes what they post.
#pragma once

#include <peerlane/device_types.h>

#include <cstdint>
#include <optional>

#include "base/status.hpp"

namespace pl::dma {

class kernel_ring {
 public:
  virtual ~kernel_ring() = default;
  // For kernels. Valid until close().
  virtual const peerlane_device_ring& handle() const noexcept = 0;
  // Periodic work of the CPU for the ring. Also detects a failure of the ring. True: kernels have posted since the last
  // call.
  virtual bool refill() = 0;

  struct state {
    std::uint64_t posted = 0, completed = 0;
    std::optional<failure> reason;  // why the ring has ended
  };
  virtual state read() const = 0;
  // Kernels that post or wait get ESHUTDOWN. After it has returned, no memory is accessed for this ring.
  virtual void close() noexcept = 0;
};

}  // namespace pl::dma
