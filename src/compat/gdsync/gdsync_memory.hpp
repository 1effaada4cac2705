// SPDX-License-Identifier: Apache-2.0
// Finds the words of descriptors, for the GPU and for the CPU. Thread-safe.
#pragma once

#include <gdsync.h>

#include <cstdint>

#include "base/log.hpp"
#include "base/status.hpp"
#include "capi/capi_call.hpp"
#include "cuda/driver_table.hpp"

namespace pl::gds {

// Reports the failure on stderr and returns its code. This interface has no other place for the message, so only
// PEERLANE_LOG silences it.
int refuse(const char* call, const failure& reason);

// The driver, initialised.
result<const cu::driver_table*> ready_driver();

// Whether exactly one memory type is set.
bool is_memory_type(int flags) noexcept;

// The address at which the current context's GPU reaches the aligned word at `pointer`. Host memory and registers that
// CUDA does not know are registered page by page and stay registered, because nobody reports when the memory of a
// descriptor is freed.
result<cu::device_ptr> device_address(const cu::driver_table& cuda, const void* pointer, int flags);

// A word of 4 bytes as the CPU reaches it.
class cpu_word {
 public:
  // EFAULT if it is device memory without a mapping by this library.
  static result<cpu_word> find(void* pointer, int flags);
  std::uint32_t load() const noexcept;
  // Earlier stores are visible before it.
  void store(std::uint32_t value) const noexcept;

 private:
  cpu_word(region* mapped, void* word) : mapped_(mapped), word_(word) {}
  region* mapped_;  // null: plain memory
  void* word_;
};

}  // namespace pl::gds
