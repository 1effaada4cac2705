// SPDX-License-Identifier: Apache-2.0
// The data sent with -c: every byte depends on its place, the message's size and the iteration, so that lost, shifted
// and stale data are all detected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pl::p2p {

inline std::uint8_t pattern_byte(std::size_t index, std::size_t size_bytes, std::uint64_t iteration) {
  return static_cast<std::uint8_t>(7 * (index + 1) + size_bytes + iteration);
}

void fill_pattern(std::span<std::uint8_t> data, std::uint64_t iteration);
// Bytes that differ from the pattern.
std::size_t count_errors(std::span<const std::uint8_t> data, std::uint64_t iteration);

}  // namespace pl::p2p
