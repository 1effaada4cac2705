// SPDX-License-Identifier: Apache-2.0
// Consumes a message: a kernel reads all of it (`peerlane p2p --consume`).
#include "cuda/kernel_device.cuh"

using namespace pl::dev;

// Reads `size_bytes` at `data` (16-byte aligned) and adds what it saw to the word at `sum`, so that no load can be left out.
PL_KERNEL void p2p_consume(std::uint64_t data, std::uint64_t size_bytes, std::uint64_t sum) {
  const std::uint64_t step = std::uint64_t{grid_dim_x()} * block_dim_x();
  const std::uint64_t me = std::uint64_t{block_x()} * block_dim_x() + thread_x();
  std::uint32_t seen = 0;
  for (std::uint64_t word = me; word < size_bytes / 4; word += step) seen ^= load_relaxed<std::uint32_t>(data + 4 * word);
  for (std::uint64_t byte = size_bytes / 4 * 4 + me; byte < size_bytes; byte += step)
    seen ^= *reinterpret_cast<const volatile std::uint8_t*>(data + byte);
  // One value in 2^32 is not stored: rare enough to cost nothing, possible enough to keep the loads.
  if (seen == 0x5EED5EEDu) store_relaxed<std::uint32_t>(sum, seen);
}

PL_EXPORT_KERNEL(p2p_consume)
