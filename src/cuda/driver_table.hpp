// SPDX-License-Identifier: Apache-2.0
// libcuda.so.1 opened at run time: one table of typed entry points.
#pragma once

#include <string>

#include "base/status.hpp"
#include "cuda/driver_abi.hpp"

namespace pl::cu {

// A null entry means the installed driver lacks the symbol (older than the call): check before use, or go through
// `require`. Filled once; read-only afterwards, so any thread may use it.
struct driver_table {
#define PL_CUDA_ENTRY(name, params) result_t(*name) params = nullptr;
  PL_CUDA_DRIVER_FUNCTIONS(PL_CUDA_ENTRY)
#undef PL_CUDA_ENTRY
  int driver_version = 0;     // as cuDriverGetVersion: 13000 = CUDA 13.0
  bool is_simulated = false;  // sim/libcuda.so.1 answered
  void* library = nullptr;    // dlopen handle, never closed
};

// Opens libcuda (an already loaded one first, else as PEERLANE_GPU says) and fills the table. Does NOT call cuInit: opening
// has no side effect on the process beyond the library being loaded. ENOSYS with the dlopen text if there is no libcuda;
// ENODEV if it is not the one that PEERLANE_GPU asks for. The outcome is cached for the process; thread-safe.
result<const driver_table*> driver();

// Tests only: replaces the table that driver() returns (null restores the real one). Not thread-safe.
void set_driver_for_tests(const driver_table* table);

// cuInit(0), once per process. ENODEV without a device, with CUDA's reason.
status initialize(const driver_table& cuda);

// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
std::string error_text(const driver_table& cuda, result_t code);

// errno that a CUDA failure becomes at our edge: out_of_memory -> ENOMEM, no_device -> ENODEV,
// not_supported -> ENOTSUP, not_permitted -> EPERM, not_ready/timeout -> ETIMEDOUT, invalid* -> EINVAL, else EIO.
int to_errno(result_t code);

// Failure of `operation` as an error value: "cuMemAlloc of 64 KiB failed: CUDA_ERROR_...". Precondition: code != success.
failure make_error(const driver_table& cuda, result_t code, const std::string& operation);

}  // namespace pl::cu
