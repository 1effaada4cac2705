// SPDX-License-Identifier: Apache-2.0
// One copy, as all executors in this folder take it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::copy {

enum class direction : std::uint8_t { to_device, to_host, on_device };  // on_device: also between two GPUs

// Host and device addresses are both plain numbers: CUDA's unified addressing keeps them apart. There are `rows` rows
// of `row_bytes`; a plain copy has one row and its pitches do not matter. Pitches are bytes from one row's start to the
// next one's, at least row_bytes. Source and destination must not overlap.
struct transfer {
  direction way = direction::to_device;
  std::uint64_t dst = 0;
  std::uint64_t src = 0;
  std::size_t row_bytes = 0;
  std::size_t rows = 1;
  std::size_t dst_pitch = 0;
  std::size_t src_pitch = 0;

  std::size_t bytes() const noexcept { return row_bytes * rows; }
  bool is_linear() const noexcept { return rows == 1 || (dst_pitch == row_bytes && src_pitch == row_bytes); }
};

inline void* host_pointer(std::uint64_t address) noexcept { return reinterpret_cast<void*>(address); }
inline std::uint64_t address_of(const void* pointer) noexcept { return reinterpret_cast<std::uint64_t>(pointer); }

}  // namespace pl::copy
