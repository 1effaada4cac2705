// SPDX-License-Identifier: Apache-2.0
// Shared by the latency kernels and the CPU.
#pragma once

#include <cstdint>

namespace pl::bandwidth::protocol {

constexpr std::uint64_t kChaseBatch = 4096;  // accesses whose times lie in shared memory together
constexpr unsigned kChaseSharedBytes = 8 + 4 * kChaseBatch;
constexpr unsigned kBulkChaseBytes = kChaseSharedBytes + 16 + 16 + 8;  // room to align, what a bulk copy brings, its barrier

struct chase_result {  // followed by a 32-bit number of cycles for each access
  std::uint64_t whole_ns;
  std::uint64_t whole_cycles;
  std::uint64_t empty_cycles;  // of timing nothing; to be taken off each access
  std::uint64_t unused;
};

constexpr std::uint32_t kReady = 1;  // the kernel runs
constexpr std::uint32_t kFirstRound = 2;
constexpr std::uint32_t kAbort = 0xFFFFFFFFu;

}  // namespace pl::bandwidth::protocol
