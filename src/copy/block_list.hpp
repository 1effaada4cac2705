// SPDX-License-Identifier: Apache-2.0
// Many blocks as one operation, each with an address on both sides, for what block_transfer.hpp cannot express with
// planes and indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.hpp"
#include "copy/transfer.hpp"

namespace pl::copy {

// Views: the arrays are read until the call that takes the list has returned.
struct block_list {
  direction way = direction::to_device;
  std::span<const std::uint64_t> destinations, sources;  // of the same length
  std::span<const std::uint64_t> sizes;                  // of the same length, or empty: all blocks have block_bytes
  std::uint64_t block_bytes = 0;

  std::size_t count() const noexcept { return destinations.size(); }
  std::uint64_t size(std::size_t i) const noexcept { return sizes.empty() ? block_bytes : sizes[i]; }
  // Bytes that are moved. Does not overflow for a list that check() has accepted.
  std::uint64_t bytes() const noexcept {
    if (sizes.empty()) return block_bytes * count();
    std::uint64_t sum = 0;
    for (const std::uint64_t one : sizes) sum += one;
    return sum;
  }
};

// Checks the list before anything moves. EINVAL names the first block with a null pointer, a size that leaves the
// address space, bytes that two blocks write, or bytes that are both read and written. Empty blocks are ignored.
status check(const block_list& list);

}  // namespace pl::copy
