// SPDX-License-Identifier: Apache-2.0
// Copies a few bytes without a function call, as two overlapping pieces of the largest size that fits.
//
// Owns: nothing. Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pl::messaging {

template <class Piece>
void copy_both_ends(void* destination, const void* source, std::size_t bytes) noexcept {
  Piece begin, end;
  const std::size_t last = bytes - sizeof(Piece);
  std::memcpy(&begin, source, sizeof begin);
  std::memcpy(&end, static_cast<const char*>(source) + last, sizeof end);
  std::memcpy(destination, &begin, sizeof begin);
  std::memcpy(static_cast<char*>(destination) + last, &end, sizeof end);
}

// Like memcpy, for any size; fastest up to 32 bytes.
inline void copy_short(void* destination, const void* source, std::size_t bytes) noexcept {
  struct words {
    std::uint64_t word[2];
  };
  if (bytes > 2 * sizeof(words)) std::memcpy(destination, source, bytes);
  else if (bytes >= sizeof(words)) copy_both_ends<words>(destination, source, bytes);
  else if (bytes >= sizeof(std::uint64_t)) copy_both_ends<std::uint64_t>(destination, source, bytes);
  else if (bytes >= sizeof(std::uint32_t)) copy_both_ends<std::uint32_t>(destination, source, bytes);
  else if (bytes >= sizeof(std::uint16_t)) copy_both_ends<std::uint16_t>(destination, source, bytes);
  else if (bytes == 1) *static_cast<char*>(destination) = *static_cast<const char*>(source);
}

}  // namespace pl::messaging
