// SPDX-License-Identifier: Apache-2.0
// The simulated devices, and the process-wide facts every call needs first: is the driver initialised, are we a forked
// child, what did the environment ask for.
//
// Nothing here is ever destroyed: stream workers may still run while the process exits.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "sim/api.hpp"

namespace pl::sim {

constexpr int kMultiprocessors = 16;             // also the number of blocks that run at the same time on a device
constexpr int kMaxThreadsPerBlock = 1024;        // as real GPUs
constexpr int kMaxSharedBytes = 48 << 10;        // a block's dynamic shared memory
constexpr std::size_t kPageBytes = 4096;         // granularity of exports
constexpr std::size_t kGpuPageBytes = 2u << 20;  // granularity of device memory objects

struct device {
  int ordinal = 0;   // as the application counts (after CUDA_VISIBLE_DEVICES)
  int physical = 0;  // which of the simulated boards this is: PCI id and UUID follow it
  uuid_t uuid{};
  std::string pci_id;
  std::size_t memory_bytes = 0;
  std::atomic<std::size_t> used_bytes{0};
};

// cuInit's work. Success again on repetition; not_initialized for ever in a forked child of an initialised parent.
result_t initialize();

// success, not_initialized, or not_permitted on a thread that is running a stream's host function.
result_t check_initialized();

// Devices visible to the application. Empty before initialize().
std::vector<device>& devices();
device* find_device(device_t ordinal);

// PEERLANE_SIM_FABRIC. no_imex: the devices could, but no memory with such handles can be made, as without the IMEX service.
enum class fabric_mode { off, on, no_imex };
fabric_mode fabric_handles();

// PEERLANE_SIM_MULTICAST: the devices stand behind a switch that multicasts.
bool has_multicast();

// PEERLANE_SIM_SEED; 0 means no artificial disorder.
std::uint64_t seed();
// The next number of the seeded generator (any thread), for 0 < limit: in [0, limit).
std::uint64_t random_below(std::uint64_t limit);
// Sleeps 0..200 us when a seed is set.
void random_delay();

// Marks the calling thread as running a host function: driver calls from it are refused, as by the real driver.
class host_function_scope {
 public:
  host_function_scope();
  ~host_function_scope();
  host_function_scope(const host_function_scope&) = delete;
  host_function_scope& operator=(const host_function_scope&) = delete;
};

// Fault injection (peerlaneSimFail): the code to fail this call with, or success.
result_t injected_failure(const char* call);

// One error line per call name for the life of the process.
void log_unsupported_once(const char* call, const char* reason);

}  // namespace pl::sim
