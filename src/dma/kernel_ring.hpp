// SPDX-License-Identifier: Apache-2.0
// A ring that kernels post into (<peerlane/device.cuh>), whoever carries out what they post.
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
  // What the CPU has to do now and then. Notices the ring's end. True: kernels have posted since the last call.
  virtual bool refill() = 0;

  struct state {
    std::uint64_t posted = 0, completed = 0;
    std::optional<failure> reason;  // why the ring takes nothing any more
  };
  virtual state read() const = 0;
  // Kernels that post or wait get ESHUTDOWN; nothing is touched for this ring after it has returned.
  virtual void close() noexcept = 0;
};

}  // namespace pl::dma
