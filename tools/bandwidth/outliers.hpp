// SPDX-License-Identifier: Apache-2.0
// Which cells of a matrix do not fit the others, and what they have in common: a link, a GPU, a socket. No link model:
// the values judge each other.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace pl::bandwidth {

struct value_grid {
  std::vector<std::vector<std::optional<double>>> values;  // [row][column]; nothing: not measured
  std::vector<std::string> rows, columns;                  // names for the text: "GPU 3", "CPU"
  std::vector<int> row_sockets, column_sockets;            // NUMA nodes; empty or -1: not known
  bool is_same_devices = false;                            // row i and column i are the same GPU (a peer matrix)
  bool higher_is_better = true;                            // false: latencies
};

struct outlier {
  // cell: one value, one direction. pair: both directions between two GPUs. device: row and column of one GPU, or all
  // values of a GPU in a matrix with one row. sockets: all values between two sockets.
  enum class kind { cell, pair, row, column, device, sockets } type = kind::cell;
  std::size_t row = 0, column = 0;  // the first cell of it; of a device in a peer matrix: its own
  double value = 0;                 // median of what it covers
  double typical = 0;               // what it was compared with
  std::string text;                 // one sentence
};

// Compared are first whole GPUs (the median of all that concerns one), then blocks between sockets, rows and columns, and at
// last single values, each with its like: one bad GPU of four spoils half of a peer matrix, but only one of four medians.
// Something stands out if it is worse than the median by more than 4 standard deviations, estimated from the median absolute
// deviation, and by more than 10 %. What one entry explains is in no later one. Of fewer than 3 nothing stands out, since
// nothing says which one is right.
std::vector<outlier> find_outliers(const value_grid& grid);

}  // namespace pl::bandwidth
