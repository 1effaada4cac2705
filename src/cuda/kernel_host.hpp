// SPDX-License-Identifier: Apache-2.0
// The contract between a kernel compiled for the CPU and the simulated GPU that runs it. C layout only: the two sides
// are different shared objects.
//
// A kernel K is the data symbol plsim_kernel_K (a kernel_descriptor) of an ELF image. The simulator stores its services
// through `services` before the first launch and calls `invoke` once a CUDA thread, on a small stack of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::sim_abi {

constexpr unsigned max_multicast_devices = 16;
constexpr std::uint32_t kernel_abi_version = 3;

struct thread_ids {
  unsigned thread[3];
  unsigned block[3];
  unsigned block_dim[3];
  unsigned grid_dim[3];
  void* shared;  // the block's dynamic shared memory
  std::size_t shared_bytes;
};

// What a kernel may ask for. Only valid on a thread the simulator made. Calls that meet an error of the kernel do not
// return: the thread ends and the context reports the error.
struct kernel_services {
  const thread_ids* (*self)();
  // The CPU address of `bytes` bytes at a device (or pinned host) address; faults if they are not accessible.
  void* (*translate)(std::uint64_t address, std::size_t bytes, bool is_write);
  void (*sync_threads)();
  void (*yield)();                     // a poll: let others run
  void (*pause_ns)(std::uint64_t ns);  // a poll that is in no hurry
  // The CPU addresses of `bytes` bytes at a multicast address, one a device, into `out` (max_multicast_devices entries);
  // how many. Faults if the address is none, may not be written, or a device has bound no memory there.
  unsigned (*multicast)(std::uint64_t address, std::size_t bytes, void** out);
  // Delayed visibility. While the word is not 0, stores and system fences go through the two functions. A store that is
  // taken (true) must not be made by the kernel; a releasing one comes after the thread's earlier stores.
  const std::uint32_t* store_delay;
  bool (*take_store)(std::uint64_t address, const void* value, std::size_t bytes, bool is_release);
  void (*fence_system)();
};

struct kernel_descriptor {
  std::uint32_t abi_version;
  std::uint32_t parameter_count;
  const std::uint32_t* parameter_bytes;
  void (*invoke)(void* const* parameters);
  const kernel_services** services;
};

}  // namespace pl::sim_abi
