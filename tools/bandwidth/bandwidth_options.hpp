// SPDX-License-Identifier: Apache-2.0
// The command line of `peerlane bandwidth` and of the program under the original's name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/bandwidth/group.hpp"
#include "tools/bandwidth/testcase.hpp"
#include "tools/common/tool.hpp"

namespace pl::bandwidth {

struct bandwidth_options {
  test_options test;
  std::vector<std::uint64_t> sizes;  // one, or those of --size-sweep
  bool sweep = false;

  std::vector<std::string> testcases, prefixes, transfers;
  bool list = false;
  bool has_size = false, has_samples = false;  // given; else they may be smaller on the simulated GPU

  bool compat = false;  // the original's output; started under its name, or --compat
  bool exit_as_original = false;
  bool json_to_stdout = false;  // -j: the original's object with `compat`, else the result file
  bool verbose = false;
  bool perf_formatter = false;
  std::string json_path, jsonl_path, csv_path;

  std::vector<std::string> pair;   // two UUIDs, or nothing
  std::int64_t pairs_wanted = -1;  // --targetNumPairs; -1: all

  std::string baseline_path;
  double threshold_percent = 5;
  group_options ranks;
};

// Returns nothing to continue with `options`. Otherwise the program ends with this code: help or an error has been
// printed.
std::optional<int> parse_options(const tools::invocation& call, bandwidth_options& options);

// "64" (MiB, as the original), "64K", "1G", "4096B"; nothing for less than 4 bytes and everything else.
std::optional<std::uint64_t> parse_buffer_size(const std::string& text);
// "4K:64M": powers of two from the first to the last, which need not be one; nothing unless 4 B <= from <= to <= 1T.
std::vector<std::uint64_t> parse_sweep(const std::string& text);

}  // namespace pl::bandwidth
