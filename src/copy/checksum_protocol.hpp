// SPDX-License-Identifier: Apache-2.0
// What the checksum kernel (kernels/checksum.cu) and gpu_checksum share: positions in pinned host memory. Included by
// GPU code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::copy::checksum {

inline constexpr std::uint64_t kSegmentBytes = 4096;
inline constexpr std::uint64_t kMaxSegments = 65536;
inline constexpr unsigned kMaxBlocks = 128;
inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kTableWords = 8 * 256;
inline constexpr unsigned kSharedBytes = (kTableWords + 2) * 4;

// Words of 32 bits. Done: number of the last finished job, written by the stream. Given up: number of the job whose
// memory must not be read any more. Started and ended: the job's number, written by each block.
inline constexpr std::size_t kDoneAt = 0, kGivenUpAt = 64, kStartedAt = 128, kEndedAt = kStartedAt + kMaxBlocks * 4,
                             kSegmentsAt = 4096, kControlBytes = kSegmentsAt + kMaxSegments * 4;

}  // namespace pl::copy::checksum
