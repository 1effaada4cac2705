// SPDX-License-Identifier: Apache-2.0
// Where descriptors' words lie, for the GPU and for the CPU. Thread-safe.
#pragma once

#include <gdsync.h>

#include <cstdint>

#include "base/log.hpp"
#include "base/status.hpp"
#include "capi/capi_call.hpp"
#include "cuda/driver_table.hpp"

namespace pl::gds {

// Says so on stderr and gives the code. This interface has no other place for the sentence, so only PEERLANE_LOG silences
// it.
int refuse(const char* call, const failure& why);

// The driver, initialised.
result<const cu::driver_table*> ready_driver();

// Whether exactly one memory type is in there.
bool is_memory_type(int flags) noexcept;

// Where the current context's GPU finds the aligned word at `pointer`. Host memory and registers that CUDA does not know are
// registered, by the page, for good: whoever posts a descriptor does not say when the memory goes.
result<cu::device_ptr> device_address(const cu::driver_table& cuda, const void* pointer, int flags);

// A word of 4 bytes as the CPU reaches it.
class cpu_word {
 public:
  // EFAULT: device memory without a mapping of this library's.
  static result<cpu_word> find(void* pointer, int flags);
  std::uint32_t load() const noexcept;
  // What was stored before is visible before it.
  void store(std::uint32_t value) const noexcept;

 private:
  cpu_word(region* mapped, void* word) : mapped_(mapped), word_(word) {}
  region* mapped_;  // null: plain memory
  void* word_;
};

}  // namespace pl::gds
