// SPDX-License-Identifier: Apache-2.0
// Whether the memory that was mapped still lies at its device address. A mapping keeps the physical memory, so after the
// application has freed it (or mapped other memory at the address) loads would give what was there before, and copies by the
// address what is there now.
#pragma once

#include <cstdint>
#include <vector>

#include "error.hpp"
#include "tensor.hpp"

namespace pl::py {

class mapped_memory {
 public:
  mapped_memory() = default;
  // What lies in `range` now; error where nothing does. `data_ptr`: of the object that owns the memory, a callable that
  // returns the address and replaces the driver call, or null.
  mapped_memory(extent range, nb::object data_ptr);

  // Throws stale_mapping unless the same memory lies at `address`, which is in the range: one driver call (57 ns on an
  // H200), or one of data_ptr.
  void must_be_there(std::uint64_t address) const;
  // The same for all of the range.
  void must_be_there() const;

 private:
  // A stretch that the driver answers alike for: an allocation, or a piece of a reservation.
  struct piece {
    std::uint64_t end = 0;
    unsigned long long buffer_id = 0;  // unique per allocation, never reused
    unsigned long long block_id = 0;   // of the physical memory; 0: the driver does not tell
  };
  const piece& piece_at(std::uint64_t address) const;
  void check(std::uint64_t address, const piece& expected) const;

  extent range_;
  std::vector<piece> pieces_;  // in order
  nb::object data_ptr_;
  std::uint64_t owner_address_ = 0;
};

}  // namespace pl::py
