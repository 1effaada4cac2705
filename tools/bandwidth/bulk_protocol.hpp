// SPDX-License-Identifier: Apache-2.0
// Shared by the kernels with bulk copies and the CPU that launches them.
#pragma once

#include <cstdint>

namespace pl::bandwidth::protocol {

// Pieces that a block keeps in flight. Four blocks of these fit a multiprocessor of any GPU that has bulk copies: 128
// KiB in flight, more than bandwidth times latency of its memory and of any link.
constexpr unsigned kBulkStages = 4;
constexpr unsigned kBulkBytes = 8192;
constexpr unsigned kBulkBlocksEach = 4;  // of a multiprocessor
constexpr unsigned kBulkThreads = 32;    // of which one works
constexpr unsigned kBulkAlignment = 128;
constexpr unsigned kBulkSharedBytes = kBulkAlignment + kBulkStages * kBulkBytes + kBulkStages * 8;

constexpr int kBulkComputeMajor = 9;  // the least compute capability

}  // namespace pl::bandwidth::protocol
