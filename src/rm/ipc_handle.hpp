// SPDX-License-Identifier: Apache-2.0
// Fields of CUDA's 64-byte legacy IPC handle that describe the memory behind it. They are undocumented, and were
// observed on driver 580.159. cuIpcGetMemHandle makes the resource manager share the object with other processes, and
// cuIpcOpenMemHandle takes its share by these numbers. Other drivers may differ, so a mapping made from them is
// verified before it is used.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/status.hpp"
#include "cuda/driver_abi.hpp"
#include "rm/rm_abi.hpp"

namespace pl::rm {

struct exported_memory {
  std::uint32_t pid = 0;
  std::uint64_t allocation_bytes = 0;
  handle client = 0;
  handle object = 0;
};

// EINVAL if these cannot be the bytes of a handle.
inline result<exported_memory> read_ipc_handle(const cu::ipc_mem_handle_t& bytes) {
  exported_memory out;
  std::memcpy(&out.pid, bytes.reserved + 8, sizeof out.pid);
  std::memcpy(&out.allocation_bytes, bytes.reserved + 16, sizeof out.allocation_bytes);
  std::memcpy(&out.client, bytes.reserved + 48, sizeof out.client);
  std::memcpy(&out.object, bytes.reserved + 52, sizeof out.object);
  if (out.pid == 0 || out.allocation_bytes == 0 || out.client == 0 || out.object == 0)
    return failure{EINVAL, "these are not the 64 bytes of a CUDA IPC memory handle, or this driver lays them out otherwise"};
  return out;
}

}  // namespace pl::rm
