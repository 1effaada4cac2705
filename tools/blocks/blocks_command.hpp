// SPDX-License-Identifier: Apache-2.0
// The parts of `peerlane blocks`: the sweep over sizes and counts, a kernel during the lists, and an urgent list behind
// a long one.
#pragma once

#include <string>
#include <vector>

#include "tools/blocks/block_mover.hpp"
#include "tools/common/report.hpp"

namespace pl::tools {

struct blocks_options {
  common_options common;
  std::vector<copy::direction> directions;
  std::vector<std::uint64_t> sizes;  // of a block
  std::vector<std::size_t> counts;
  std::vector<std::string> methods;       // empty: all
  std::uint64_t memory_bytes = 1u << 30;  // longest list
  std::int64_t most_each = 1024;          // longest list by one call a block
  std::int64_t samples = 1000;            // most for each contender and point
  std::int64_t time_ms = 150;             // for each point
  std::int64_t seed = 0;
  bool no_verify = false;
  bool beside = false;
  bool urgent = false;
};

// What the link carries in a direction by its specification; 0: unknown.
struct link_limit {
  double to_device_gb_per_s = 0, to_host_gb_per_s = 0;
  std::string text;  // "PCIe 5.0 x16"
  double rate(copy::direction way) const { return way == copy::direction::to_host ? to_host_gb_per_s : to_device_gb_per_s; }
};

inline const char* label_of(copy::direction way) { return way == copy::direction::to_host ? "d2h" : "h2d"; }
bool is_wanted_mover(const blocks_options& options, const std::string& name);

// Each prints its tables and adds rows. The sweep goes on when a contender fails, notes it, and says false.
bool run_block_sweep(mover_set& movers, const blocks_options& options, const link_limit& link, result_file& results);
void run_blocks_beside(mover_set& movers, const blocks_options& options, result_file& results);
void run_urgent_list(mover_set& movers, const blocks_options& options, result_file& results);

}  // namespace pl::tools
