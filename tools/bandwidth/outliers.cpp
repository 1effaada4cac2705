// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/outliers.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "base/text.hpp"

namespace pl::bandwidth {
namespace {

constexpr double kDeviations = 4;
constexpr double kMinShare = 0.10;
constexpr double kMadToDeviation = 1.4826;  // of a normal distribution
constexpr double kBlamedShare = 0.75;       // share of a row's values that must stand out to blame the row

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

struct position {
  std::size_t row, column;
};
using positions = std::vector<position>;

// The usual value of a set, and the usual distance from it.
struct scale {
  double typical = 0, margin = 0;
  bool is_known = false;
  explicit scale(const std::vector<double>& values) {
    if (values.size() < 3) return;
    typical = median_of(values);
    std::vector<double> distances;
    for (const double value : values) distances.push_back(std::fabs(value - typical));
    margin = std::max(kDeviations * kMadToDeviation * median_of(distances), kMinShare * typical);
    is_known = typical > 0;
  }
};

class search {
 public:
  explicit search(const value_grid& grid) : grid_(grid) {
    for (std::size_t r = 0; r < grid.values.size(); ++r)
      for (std::size_t c = 0; c < grid.values[r].size(); ++c)
        if (grid.values[r][c]) left_.push_back({r, c});
    for (const auto& p : left_) rows_ = std::max(rows_, p.row + 1), columns_ = std::max(columns_, p.column + 1);
  }

  std::vector<outlier> run() {
    if (grid_.is_same_devices) blame_devices();
    blame_sockets();
    if (columns_ > 1) blame_lines(rows_, &position::row, outlier::kind::row);
    if (rows_ > 1) blame_lines(columns_, &position::column, outlier::kind::column);
    blame_cells();
    return std::move(found_);
  }

 private:
  double value_at(const position& p) const { return *grid_.values[p.row][p.column]; }
  std::vector<double> values_of(const positions& cells) const {
    std::vector<double> out;
    for (const auto& p : cells) out.push_back(value_at(p));
    return out;
  }
  template <class Wanted>
  positions left_where(const Wanted& wanted) const {
    positions out;
    std::copy_if(left_.begin(), left_.end(), std::back_inserter(out), wanted);
    return out;
  }
  bool stands_out(double value, const scale& usual) const {
    if (!usual.is_known) return false;
    return grid_.higher_is_better ? value < usual.typical - usual.margin : value > usual.typical + usual.margin;
  }
  bool mostly_stand_out(const positions& cells, const scale& usual) const {
    const auto bad =
        std::count_if(cells.begin(), cells.end(), [&](const position& p) { return stands_out(value_at(p), usual); });
    return !cells.empty() && static_cast<double>(bad) >= kBlamedShare * static_cast<double>(cells.size());
  }

  static std::string name_of(const std::vector<std::string>& names, std::size_t i, const char* otherwise) {
    return i < names.size() ? names[i] : format("%s %zu", otherwise, i);
  }
  std::string row_name(std::size_t r) const { return name_of(grid_.rows, r, "row"); }
  std::string column_name(std::size_t c) const { return name_of(grid_.columns, c, "column"); }

  void blame(const positions& cells, outlier::kind kind, const std::string& label, double typical) {
    outlier out{kind, cells.front().row, cells.front().column, median_of(values_of(cells)), typical, ""};
    for (const auto& p : cells)
      std::erase_if(left_, [&](const position& o) { return o.row == p.row && o.column == p.column; });
    const double percent = std::fabs(out.value - typical) / typical * 100;
    out.text = format("%s: %.4g where %.4g is usual here, %.0f %% %s", label.c_str(), out.value, typical, percent,
                      grid_.higher_is_better ? "less" : "more");
    found_.push_back(std::move(out));
  }

  // A GPU whose sending and receiving are both bad.
  void blame_devices() {
    const std::size_t devices = std::max(rows_, columns_);
    std::vector<double> medians;
    for (std::size_t i = 0; i < devices; ++i)
      medians.push_back(median_of(values_of(left_where([i](const position& p) { return p.row == i || p.column == i; }))));
    const scale usual(medians);
    for (std::size_t i = 0; i < devices; ++i) {
      const auto own = left_where([i](const position& p) { return p.row == i || p.column == i; });
      const auto sent = left_where([i](const position& p) { return p.row == i; });
      const auto received = left_where([i](const position& p) { return p.column == i; });
      if (!own.empty() && stands_out(medians[i], usual) && mostly_stand_out(sent, usual) &&
          mostly_stand_out(received, usual)) {
        blame(own, outlier::kind::device, row_name(i) + ", in both directions", usual.typical);
        found_.back().row = found_.back().column = i;
      }
    }
  }

  static int socket_of(const std::vector<int>& sockets, std::size_t i) { return i < sockets.size() ? sockets[i] : -1; }

  // Compares all values from one socket to another with the rest. Few values are no evidence against a socket: they may be
  // one
  void blame_sockets() {
    std::map<std::pair<int, int>, positions> blocks;
    for (const auto& p : left_) {
      const int row_socket = socket_of(grid_.row_sockets, p.row), column_socket = socket_of(grid_.column_sockets, p.column);
      if (row_socket >= 0 && column_socket >= 0) blocks[{row_socket, column_socket}].push_back(p);
    }
    const std::size_t fewest = grid_.is_same_devices ? 4 : 2;
    for (const auto& [sockets, cells] : blocks) {
      const auto rest = left_where([&, block = sockets](const position& p) {
        return std::pair{socket_of(grid_.row_sockets, p.row), socket_of(grid_.column_sockets, p.column)} != block;
      });
      auto others = values_of(rest);
      if (others.size() == 2) others.push_back(median_of(others));  // two GPUs on each of two sockets
      const scale usual(others);
      if (cells.size() < fewest || !mostly_stand_out(cells, usual)) continue;
      const std::string label = sockets.first == sockets.second
                                    ? format("everything within socket %d", sockets.first)
                                    : format("the link from socket %d to socket %d", sockets.first, sockets.second);
      blame(cells, outlier::kind::sockets, label, usual.typical);
    }
  }

  // Rows or columns by their medians.
  void blame_lines(std::size_t count, std::size_t position::*index, outlier::kind kind) {
    std::vector<positions> lines(count);
    for (const auto& p : left_) lines[p.*index].push_back(p);
    std::vector<double> medians;
    for (const auto& line : lines)
      if (line.size() > 1) medians.push_back(median_of(values_of(line)));
    const scale usual(medians);
    for (const auto& line : lines) {
      if (line.size() < 2 || !stands_out(median_of(values_of(line)), usual) || !mostly_stand_out(line, usual)) continue;
      const bool is_row = kind == outlier::kind::row;
      const std::string label =
          is_row ? "everything from " + row_name(line.front().row) : "everything to " + column_name(line.front().column);
      blame(line, kind, label, usual.typical);
    }
  }

  void blame_cells() {
    const scale usual(values_of(left_));
    const auto bad = left_where([&](const position& p) { return stands_out(value_at(p), usual); });
    for (const auto& p : bad) {
      const auto is_mirror = [&p](const position& o) { return o.row == p.column && o.column == p.row; };
      const bool both = grid_.is_same_devices && std::any_of(bad.begin(), bad.end(), is_mirror);
      if (both && p.row > p.column) continue;  // reported with its mirror
      if (both)
        blame(
            {p, {p.column, p.row}}, outlier::kind::pair,
            format("the link between %s and %s, in both directions", row_name(p.row).c_str(), column_name(p.column).c_str()),
            usual.typical);
      else blame({p}, kind_of_cell(), cell_name(p), usual.typical);
    }
  }
  // In a matrix with one row or column, each value stands for its GPU.
  outlier::kind kind_of_cell() const { return rows_ > 1 && columns_ > 1 ? outlier::kind::cell : outlier::kind::device; }
  std::string cell_name(const position& p) const {
    if (rows_ == 1) return column_name(p.column);
    if (columns_ == 1) return row_name(p.row);
    return format("the path from %s to %s", row_name(p.row).c_str(), column_name(p.column).c_str());
  }

  const value_grid& grid_;
  std::size_t rows_ = 0, columns_ = 0;
  positions left_;  // cells that nothing explains yet
  std::vector<outlier> found_;
};

}  // namespace

std::vector<outlier> find_outliers(const value_grid& grid) { return search(grid).run(); }

}  // namespace pl::bandwidth
