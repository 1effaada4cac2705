// SPDX-License-Identifier: Apache-2.0
#include "measure/text_table.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/text.hpp"

namespace pl {
namespace {

// Columns on a terminal: UTF-8 continuation bytes take none.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

text_table::text_table(std::vector<column> columns) : columns_(std::move(columns)) {}

void text_table::add_row(std::vector<std::string> cells) {
  assert(cells.size() <= columns_.size());
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string text_table::render() const {
  std::vector<std::size_t> widths;
  for (const auto& one : columns_) widths.push_back(width_of(one.title));
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));

  std::string out;
  const auto add_line = [&](const auto& cell_at) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const std::string cell = cell_at(i);
      const std::string padding(widths[i] - width_of(cell), ' ');
      if (i != 0) line += "  ";
      line += columns_[i].side == align::left ? cell + padding : padding + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  add_line([&](std::size_t i) { return columns_[i].title; });
  add_line([&](std::size_t i) { return std::string(widths[i], '-'); });
  for (const auto& row : rows_) add_line([&](std::size_t i) { return row[i]; });
  return out;
}

std::string short_number(double value) {
  const double size = std::fabs(value);
  if (size >= 1000) return format("%.0f", value);
  if (size >= 100) return format("%.1f", value);
  if (size >= 1) return format("%.2f", value);
  return format("%.3f", value);
}

std::string format_duration_ns(double duration_ns) {
  if (duration_ns < 1e6) return short_number(duration_ns / 1e3) + " us";
  if (duration_ns < 1e9) return short_number(duration_ns / 1e6) + " ms";
  return short_number(duration_ns / 1e9) + " s";
}

}  // namespace pl
