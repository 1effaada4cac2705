// SPDX-License-Identifier: Apache-2.0
// The CUDA context in which an executor keeps its streams and memory, and which the application may destroy at any
// time.
#pragma once

#include "base/status.hpp"
#include "cuda/driver_table.hpp"

namespace pl::copy {

struct gpu_context {
  const cu::driver_table* cuda = nullptr;
  int device_ordinal = -1;
  cu::context_t handle = nullptr;
  unsigned long long id = 0;  // never reused; 0 if the driver (before CUDA 12) has no such id

  // Whether `handle` is still the same context: contexts can be destroyed, and their address reused.
  bool is_alive() const noexcept;
};

// The context that owns memory of this device: `owner` if not null (as the driver reports it for a pointer), otherwise
// the device's primary context, which is then retained for the life of the process (independently of the application's
// retain count).
result<gpu_context> find_context(const cu::driver_table& cuda, int device_ordinal, cu::context_t owner);

// Makes the context current on this thread and puts the thread into relaxed stream capture mode, so that our calls
// break no capture of the application; the destructor restores both. Takes about 50 ns if the context is current
// already.
class [[nodiscard]] context_use {
 public:
  // EIO with the driver's reason if the context is gone.
  static result<context_use> enter(const gpu_context& context);
  context_use(context_use&& other) noexcept;
  context_use& operator=(context_use&&) = delete;
  ~context_use();

 private:
  context_use(const cu::driver_table* cuda, bool pushed, int capture_mode)
      : cuda_(cuda), pushed_(pushed), capture_mode_(capture_mode) {}
  const cu::driver_table* cuda_;
  bool pushed_;
  int capture_mode_;  // to be restored; -1: this driver has no capture modes
};

}  // namespace pl::copy
