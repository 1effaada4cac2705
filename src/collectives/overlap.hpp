// SPDX-License-Identifier: Apache-2.0
// Whether the memory of two sides overlaps, which collectives refuse but for their forms in place.
//
// Owns: nothing. Threads: any. Errors: none.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"

namespace pl::collectives {

inline bool overlaps(std::uint64_t first, std::size_t first_bytes, std::uint64_t second, std::size_t second_bytes) noexcept {
  return first_bytes != 0 && second_bytes != 0 && first < second + second_bytes && second < first + first_bytes;
}

inline failure overlap_failure() {
  return {EINVAL,
          "source and destination overlap: give separate memory, or exactly the place that the collective's in-place form "
          "names"};
}

}  // namespace pl::collectives
