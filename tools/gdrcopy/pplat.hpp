// SPDX-License-Identifier: Apache-2.0
// The ping-pong between the CPU and a running kernel; `peerlane demo` runs it too.
#pragma once

#include "tools/common/report.hpp"

namespace pl::tools {

struct pplat_options {
  common_options common;
  std::int64_t iterations = 1000;
  std::int64_t timeout_s = 10;  // 0: none
  std::uint64_t data_bytes = 0;
  std::int64_t blocks = 8;
  std::int64_t threads = 1024;
  bool gpu_produces = false;
  bool to_gpu_in_host_memory = false;  // -G: where the CPU's flag lies
  bool to_cpu_in_host_memory = true;   // -C: where the GPU's flag lies
  bool data_in_host_memory = false;    // -D
};

struct pplat_outcome {
  std::vector<double> samples_ns;  // CPU produces: every iteration; GPU produces: one, the mean
  std::uint64_t mismatches = 0;
};

// Prints the stock lines between the mapping and the result. Throws on time-out.
pplat_outcome run_ping_pong(const gpu_session& gpu, const pplat_options& options, const gdr_session& gdr,
                            const gdr_buffer& buffer);

// Bytes of GPU memory that run_ping_pong wants mapped.
std::uint64_t ping_pong_bytes(const pplat_options& options);

}  // namespace pl::tools
