// SPDX-License-Identifier: Apache-2.0
// What the kernels of a collective on a stream are told, and how the memory that the ranks share is laid out. Included by
// kernels, too (C++17).
//
// Every rank has a *region*, which all others write into:
//   counts        own only: how many times each block has run a small and how many chunks it has done of large ones
//   flags         64-bit words, one for each block and source rank: chunks that have arrived, results that have arrived
//   small inbox   [parity][source rank][block][word]: 16 bytes each, 8 of data and the mark of the launch
//   chunk slots   [source rank][block][depth]: contributions to this rank's share; then as many of finished shares
//
// Launches of one object come in one order on all ranks, and those of one rank one after the other.
#pragma once

#include <cstdint>

namespace pl::collectives {

constexpr unsigned kMaxStreamRanks = 16;
constexpr unsigned kMaxStreamBlocks = 128;
constexpr unsigned kMaxStreamThreads = 512;

enum : unsigned { kStreamAllReduce, kStreamReduceScatter, kStreamAllGather, kStreamAllToAll, kStreamBarrier };

// Passed by value. All addresses as this rank's GPU has them.
struct stream_job {
  std::uint64_t region[kMaxStreamRanks];  // by rank
  std::uint32_t rank, size;
  std::uint32_t kind, op;
  std::uint32_t blocks;      // most of a launch: the regions have room for so many
  std::uint32_t is_aligned;  // addresses and strides are multiples of 16
  std::uint64_t source, destination;
  // The share of rank r begins r strides behind the address. 0: the memory is one share.
  std::uint64_t source_stride, destination_stride;
  std::uint64_t share_bytes;  // of each rank; the last ones of an all-reduce may be shorter
  std::uint64_t bytes;        // all-reduce: of the whole; else of a share
  // Small: words of 8 bytes, how many of them each block takes, and how many its inbox holds.
  std::uint64_t words;
  std::uint32_t words_per_block, inbox_words;
  // Large: bytes of a chunk in this launch, and of its slot; chunks of a share; a power of two.
  std::uint64_t chunk_bytes, slot_bytes, chunks, depth;
  std::uint64_t inbox, slots, results;  // offsets in a region
  std::uint64_t stop;        // 64-bit word in host memory: not 0 once the object is stopped, with the reason's code
  std::uint64_t timeout_ns;  // 0: none
};

// Offsets in a region.
constexpr std::uint64_t kSmallCounts = 0;
constexpr std::uint64_t kChunkCounts = kSmallCounts + 8 * kMaxStreamBlocks;
constexpr std::uint64_t kArrivedFlags = kChunkCounts + 8 * kMaxStreamBlocks;
constexpr std::uint64_t kResultFlags = kArrivedFlags + 8ull * kMaxStreamBlocks * kMaxStreamRanks;
constexpr std::uint64_t kInboxOffset = kResultFlags + 8ull * kMaxStreamBlocks * kMaxStreamRanks;

}  // namespace pl::collectives
