// SPDX-License-Identifier: Apache-2.0
// Detects whether mapped memory was freed. A mapping keeps the physical memory alive. After the application has freed it, or
// mapped other memory at the same device address, loads through the mapping would return the old memory, and copies by
// device address would use the new one.
#pragma once

#include <cstdint>
#include <vector>

#include "error.hpp"
#include "tensor.hpp"

namespace pl::py {

class mapped_memory {
 public:
  mapped_memory() = default;
  // Remembers which memory is in `range`; throws error if there is none. `data_ptr`: if not null, a callable of the memory's
  // owner that returns its current address. It replaces the driver call.
  mapped_memory(extent range, nb::object data_ptr);

  // Throws stale_mapping if `address`, which is in the range, has other memory now. Costs one driver call (57 ns on an
  // H200) or one call of data_ptr.
  void must_be_there(std::uint64_t address) const;
  // Checks the whole range.
  void must_be_there() const;

 private:
  // Part of the range with one identity: an allocation, or a piece of a VMM reservation.
  struct piece {
    std::uint64_t end = 0;
    unsigned long long buffer_id = 0;  // unique per allocation, never reused
    unsigned long long block_id = 0;   // identity of the physical memory; 0: unknown to the driver
  };
  const piece& piece_at(std::uint64_t address) const;
  void check(std::uint64_t address, const piece& expected) const;

  extent range_;
  std::vector<piece> pieces_;  // in order
  nb::object data_ptr_;
  std::uint64_t owner_address_ = 0;
};

}  // namespace pl::py
