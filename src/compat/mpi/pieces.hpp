// SPDX-License-Identifier: Apache-2.0
// Rows of bytes that a buffer argument names, in the order in which MPI sends them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pl::mpi {

// The pitch is at least row_bytes.
struct piece {
  std::ptrdiff_t offset = 0;
  std::size_t row_bytes = 0;
  std::size_t rows = 1;
  std::size_t pitch = 0;
  std::size_t bytes() const noexcept { return rows * row_bytes; }
};
using pieces = std::vector<piece>;

// Walks once through all rows, in parts of any size. `rows` must outlive it and hold no empty piece.
class piece_cursor {
 public:
  explicit piece_cursor(const pieces& rows) : rows_(&rows) {}
  // The next `bytes` bytes, fewer at the end. Rows that are not whole become pieces of their own.
  pieces next(std::size_t bytes) {
    pieces out;
    while (bytes != 0 && index_ < rows_->size()) {
      const piece& one = (*rows_)[index_];
      const std::size_t row = done_ / one.row_bytes, column = done_ % one.row_bytes;
      const std::ptrdiff_t begin = one.offset + static_cast<std::ptrdiff_t>(row * one.pitch + column);
      piece part{begin, one.row_bytes, bytes / one.row_bytes, one.pitch};
      part.rows = std::min(part.rows, one.rows - row);
      if (column != 0 || part.rows == 0) {
        const std::size_t rest = std::min(bytes, one.row_bytes - column);
        part = {begin, rest, 1, rest};
      }
      out.push_back(part);
      bytes -= part.bytes();
      done_ += part.bytes();
      if (done_ == one.bytes()) ++index_, done_ = 0;
    }
    return out;
  }

 private:
  const pieces* rows_;
  std::size_t index_ = 0;
  std::size_t done_ = 0;  // bytes of the piece at index_
};

}  // namespace pl::mpi
