// SPDX-License-Identifier: Apache-2.0
// The parts of `peerlane copy`: the sweep over sizes, other work while an engine is resident, and lists and
// asynchronous copies.
#pragma once

#include "tools/common/report.hpp"
#include "tools/copy/copy_case.hpp"

namespace pl::tools {

struct copy_options {
  common_options common;
  std::vector<copy_case> cases;
  std::uint64_t min_bytes = 1;
  std::uint64_t max_bytes = 64u << 20;
  bool odd = false;
  std::vector<std::string> methods;  // empty: all
  std::int64_t samples = 2000;       // most per contender and size
  std::int64_t time_ms = 150;        // per size
  std::int64_t seed = 0;
  bool no_verify = false;
  bool no_hold = false;
  bool all_columns = false;
  bool keep_samples = false;
  bool beside = false;
  bool async = false;
};

// Each prints its tables and adds rows to the results. Throws on mismatches.
void run_copy_sweep(const gpu_session& gpu, const copy_options& options, result_file& results);
void run_copy_beside(const gpu_session& gpu, const copy_options& options, result_file& results);
void run_copy_async(const gpu_session& gpu, const copy_options& options, result_file& results);

}  // namespace pl::tools
