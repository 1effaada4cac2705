// SPDX-License-Identifier: Apache-2.0
// Aligned text tables: a view of results for people (the JSON is the result).
#pragma once

#include <string>
#include <vector>

namespace pl {

class text_table {
 public:
  enum class align { left, right };
  struct column {
    std::string title;
    align side = align::right;
  };

  explicit text_table(std::vector<column> columns);

  // Missing cells are empty; extra cells are a bug (asserts).
  void add_row(std::vector<std::string> cells);

  // Title line, a rule, the rows; two spaces between columns, no trailing blanks, every line ends with a newline.
  std::string render() const;
  bool empty() const { return rows_.empty(); }

 private:
  std::vector<column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Three or four significant digits, so that columns of latencies stay readable: 0.083, 1.05, 12.3, 1234.
std::string short_number(double value);

// 0.31 us / 12.3 us / 1.20 ms from nanoseconds.
std::string format_duration_ns(double duration_ns);

}  // namespace pl
