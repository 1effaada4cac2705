// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/row_pairs.hpp"

#include <algorithm>

namespace pl::mpi {
namespace {

// Where a walk through rows stands.
class row_walk {
 public:
  explicit row_walk(const pieces& rows) : rows_(rows) {}
  bool is_at_end() const { return index_ == rows_.size(); }
  std::ptrdiff_t place() const { return piece_().offset + static_cast<std::ptrdiff_t>(row_ * piece_().pitch + column_); }
  std::size_t rest_of_row() const { return piece_().row_bytes - column_; }
  bool is_at_row() const { return column_ == 0; }
  std::size_t rows_left() const { return piece_().rows - row_; }
  std::size_t row_bytes() const { return piece_().row_bytes; }
  std::size_t pitch() const { return piece_().pitch; }
  // The bytes that follow here are `rows` rows of `bytes`: whole rows of the piece, or side by side in one of its rows.
  std::size_t rows_of(std::size_t bytes) const {
    if (is_at_row() && row_bytes() == bytes) return rows_left();
    return rest_of_row() / bytes;
  }
  std::size_t pitch_of(std::size_t bytes) const { return is_at_row() && row_bytes() == bytes ? pitch() : bytes; }
  void advance(std::size_t bytes) {
    const std::size_t done = row_ * row_bytes() + column_ + bytes;
    row_ = done / row_bytes();
    column_ = done % row_bytes();
    if (row_ == piece_().rows) ++index_, row_ = column_ = 0;
  }

 private:
  const piece& piece_() const { return rows_[index_]; }
  const pieces& rows_;
  std::size_t index_ = 0, row_ = 0, column_ = 0;
};

}  // namespace

std::vector<copy::transfer> pair_rows(const pieces& destination, const pieces& source, copy::direction way) {
  std::vector<copy::transfer> out;
  row_walk writing(destination), reading(source);
  while (!writing.is_at_end() && !reading.is_at_end()) {
    const std::size_t bytes = std::min(writing.rest_of_row(), reading.rest_of_row());
    const std::size_t rows = std::max<std::size_t>(std::min(writing.rows_of(bytes), reading.rows_of(bytes)), 1);
    out.push_back({way, static_cast<std::uint64_t>(writing.place()), static_cast<std::uint64_t>(reading.place()), bytes,
                   rows, writing.pitch_of(bytes), reading.pitch_of(bytes)});
    writing.advance(rows * bytes);
    reading.advance(rows * bytes);
  }
  return out;
}

}  // namespace pl::mpi
