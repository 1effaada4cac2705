// SPDX-License-Identifier: Apache-2.0
// The GPU's side of pplat (tools/gdrcopy/pplat.cpp draws the protocol) and of the sanity case kernel_sees_write.
//
// Every wait ends: when the flag has the value, when it has kAbort (the CPU gives up), or after timeout_ns.
#include "cuda/kernel_device.cuh"

using namespace pl::dev;

namespace {

constexpr std::uint32_t kReady = 1;  // iteration i uses the value i + 2
constexpr std::uint32_t kAbort = 0xFFFFFFFFu;
constexpr unsigned kPollsPerClock = 1024;  // the timer is slow to read

// Polls with relaxed loads: an acquire would order every poll and, after the last one, cost a second trip to memory. Callers
// that read data behind the flag fence once after it.
PL_DEVICE bool wait_for(std::uint64_t flag, std::uint32_t value, std::uint64_t timeout_ns) {
  const std::uint64_t begin = timeout_ns != 0 ? global_timer_ns() : 0;
  for (unsigned polls = 1;; ++polls) {
    const std::uint32_t seen = load_relaxed<std::uint32_t>(flag);
    if (seen == value) return true;
    if (seen == kAbort) return false;
    if (timeout_ns != 0 && polls % kPollsPerClock == 0 && global_timer_ns() - begin > timeout_ns) return false;
  }
}

// The content of data word `index` in iteration `value`; the CPU computes the same.
PL_DEVICE std::uint32_t data_word(std::uint32_t value, std::uint32_t index) { return value * 2654435761u + index; }

// A word that thread 0 shares with its block.
PL_DEVICE std::uint32_t* block_word() { return static_cast<std::uint32_t*>(shared_memory()); }

}  // namespace

// CPU produces. Block b waits for its word of `to_gpu`, checks its part of the data (words b, b + grid, ... of threads),
// counts mismatches into `mismatches`, and answers in its word of `to_cpu`. `status` gets 1 if a wait ended without value.
PL_KERNEL void pplat_consume(std::uint64_t to_gpu, std::uint64_t to_cpu, std::uint64_t data, std::uint32_t data_words,
                             std::uint32_t iterations, std::uint64_t timeout_ns, std::uint64_t mismatches,
                             std::uint64_t status) {
  const std::uint64_t my_flag = to_gpu + 4u * block_x();
  const std::uint64_t my_answer = to_cpu + 4u * block_x();
  if (thread_x() == 0) store_release<std::uint32_t>(my_answer, kReady);
  for (std::uint32_t i = 0; i < iterations; ++i) {
    const std::uint32_t value = i + 2;
    if (data_words == 0) {  // one block of one thread: nothing to share, nothing to order but the flag itself
      if (!wait_for(my_flag, value, timeout_ns)) {
        store_release<std::uint32_t>(status, 1u);
        return;
      }
      store_relaxed<std::uint32_t>(my_answer, value);
      continue;
    }
    if (thread_x() == 0) {
      *block_word() = wait_for(my_flag, value, timeout_ns) ? 1u : 0u;
      fence_system();  // the flag before the data behind it
    }
    sync_threads();
    if (*block_word() == 0) {
      if (thread_x() == 0) store_release<std::uint32_t>(status, 1u);
      return;
    }
    std::uint32_t wrong = 0;
    for (std::uint32_t index = block_x() * block_dim_x() + thread_x(); index < data_words;
         index += grid_dim_x() * block_dim_x())
      if (load_relaxed<std::uint32_t>(data + 4ull * index) != data_word(value, index)) ++wrong;
    if (wrong != 0) atomic_add<std::uint32_t>(mismatches, wrong);
    sync_threads();  // every load of the block has been used before the answer lets the CPU overwrite the data
    if (thread_x() == 0) store_release<std::uint32_t>(my_answer, value);
  }
}

// GPU produces: each block writes its part of the data, then its word of `to_cpu`, and waits for the CPU's word. Block 0
// leaves the nanoseconds of all iterations in `duration_ns`.
PL_KERNEL void pplat_produce(std::uint64_t to_gpu, std::uint64_t to_cpu, std::uint64_t data, std::uint32_t data_words,
                             std::uint32_t iterations, std::uint64_t timeout_ns, std::uint64_t duration_ns,
                             std::uint64_t status) {
  const std::uint64_t my_flag = to_gpu + 4u * block_x();
  const std::uint64_t my_answer = to_cpu + 4u * block_x();
  if (thread_x() == 0) {
    store_release<std::uint32_t>(my_answer, kReady);
    *block_word() = wait_for(my_flag, kReady, timeout_ns) ? 1u : 0u;  // the CPU starts all blocks together
  }
  sync_threads();
  const std::uint64_t begin = global_timer_ns();
  for (std::uint32_t i = 0; i < iterations && *block_word() != 0; ++i) {
    const std::uint32_t value = i + 2;
    for (std::uint32_t index = block_x() * block_dim_x() + thread_x(); index < data_words;
         index += grid_dim_x() * block_dim_x())
      store_relaxed<std::uint32_t>(data + 4ull * index, data_word(value, index));
    if (data_words != 0) {
      fence_system();  // each thread's own data before the flag that thread 0 writes
      sync_threads();
    }
    if (thread_x() == 0) {
      store_relaxed<std::uint32_t>(my_answer, value);
      *block_word() = wait_for(my_flag, value, timeout_ns) ? 1u : 0u;
    }
    sync_threads();
  }
  if (thread_x() != 0) return;
  if (*block_word() == 0) store_release<std::uint32_t>(status, 1u);
  else if (block_x() == 0) store_release<std::uint64_t>(duration_ns, global_timer_ns() - begin);
}

// Waits for the flag, then copies `words` words from `source` to `target`. For the sanity case.
PL_KERNEL void copy_when_told(std::uint64_t flag, std::uint32_t value, std::uint64_t source, std::uint64_t target,
                              std::uint32_t words, std::uint64_t timeout_ns, std::uint64_t status) {
  if (!wait_for(flag, value, timeout_ns)) {
    store_release<std::uint32_t>(status, 2u);
    return;
  }
  fence_system();  // the flag before the data behind it
  for (std::uint32_t i = 0; i < words; ++i)
    store_relaxed<std::uint32_t>(target + 4ull * i, load_relaxed<std::uint32_t>(source + 4ull * i));
  store_release<std::uint32_t>(status, 1u);
}

PL_EXPORT_KERNEL(pplat_consume)
PL_EXPORT_KERNEL(pplat_produce)
PL_EXPORT_KERNEL(copy_when_told)
