// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic that reports overflow instead of wrapping. All sizes are in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace pl {

constexpr std::size_t kHostPageBytes = 4096;      // x86-64 and the arm64 kernels that we support
constexpr std::size_t kGpuPageBytes = 64 * 1024;  // granule of GDRCopy pins (GPU_PAGE_SIZE)

constexpr bool is_power_of_two(std::uint64_t v) { return v != 0 && (v & (v - 1)) == 0; }

// Precondition: alignment is a power of two.
constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) { return value & ~(alignment - 1); }

constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

constexpr std::optional<std::uint64_t> checked_align_up(std::uint64_t value, std::uint64_t alignment) {
  const auto sum = checked_add(value, alignment - 1);
  if (!sum) return std::nullopt;
  return align_down(*sum, alignment);
}

// A half-open byte range [begin, begin + size_bytes) of device virtual addresses.
struct address_range {
  std::uint64_t begin = 0;
  std::uint64_t size_bytes = 0;
  constexpr std::uint64_t end() const { return begin + size_bytes; }
  constexpr bool contains(address_range inner) const {
    return inner.begin >= begin && inner.size_bytes <= size_bytes && inner.begin - begin <= size_bytes - inner.size_bytes;
  }
};

// Expands the range outwards to multiples of `granule_bytes` (a power of two). Empty on overflow.
constexpr std::optional<address_range> round_outwards(address_range range, std::uint64_t granule_bytes) {
  const auto end = checked_add(range.begin, range.size_bytes);
  if (!end) return std::nullopt;
  const auto rounded_end = checked_align_up(*end, granule_bytes);
  if (!rounded_end) return std::nullopt;
  const auto begin = align_down(range.begin, granule_bytes);
  return address_range{begin, *rounded_end - begin};
}

}  // namespace pl
