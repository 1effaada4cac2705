// SPDX-License-Identifier: Apache-2.0
#include "os/process_barrier.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pl {
namespace {

bool call_membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

std::atomic<bool> process_barrier::has_joined_{false};

bool process_barrier::join() noexcept {
  if (!has_joined() && call_membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED))
    has_joined_.store(true, std::memory_order_relaxed);
  return has_joined();
}

bool process_barrier::heavy() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return call_membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

}  // namespace pl
