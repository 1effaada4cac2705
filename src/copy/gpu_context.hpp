// SPDX-License-Identifier: Apache-2.0
// The CUDA context in which an executor keeps its streams and memory, which the application may destroy at any time.
#pragma once

#include "base/status.hpp"
#include "cuda/driver_table.hpp"

namespace pl::copy {

struct gpu_context {
  const cu::driver_table* cuda = nullptr;
  int device_ordinal = -1;
  cu::context_t handle = nullptr;
  unsigned long long id = 0;  // never given out twice; 0 where the driver (before CUDA 12) has no such id

  // Whether `handle` still is the context it was: contexts get destroyed, and the address then names a new one.
  bool is_alive() const noexcept;
};

// The context that owns memory of this device: `owner` if not null (as the driver reports it for a pointer), else the
// device's primary context, which is retained for the life of the process (an application's own retain count does not matter
// then).
result<gpu_context> find_context(const cu::driver_table& cuda, int device_ordinal, cu::context_t owner);

// Makes the context current on this thread and puts the thread into the relaxed stream capture mode, so that nothing we call
// breaks a capture that the application has under way; both are put back. Some 50 ns where the context is current already.
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
  int capture_mode_;  // to put back; -1: this driver has no such thing
};

}  // namespace pl::copy
