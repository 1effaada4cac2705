// SPDX-License-Identifier: Apache-2.0
// The parts of copylat: the stock shape, and the comparison that only `peerlane copylat` prints.
#pragma once

#include "tools/common/report.hpp"

namespace pl::tools {

struct copylat_options {
  common_options common;
  std::uint64_t max_bytes = 16u << 20;
  std::int64_t write_iterations = 10000;
  std::int64_t read_iterations = 100;
  bool with_cu_memcpy = false;  // -c
  bool cold = false;            // -C

  // Ours.
  bool stock_shape = false;
  bool alignments = false;
  bool batch = false;
  std::vector<std::uint64_t> alignment_sizes = {4, 8, 16, 32, 64, 128, 256, 512, 960, 1024};
  std::uint64_t batch_bytes = 64;
  std::int64_t batch_messages = 2'000'000;
  std::vector<std::uint64_t> sizes;  // of the comparison; empty: powers of two up to max_bytes
  std::int64_t budget_ms = 300;      // per size and direction of the comparison
};

// One mapped buffer and the host side of the copies.
struct copy_bench {
  copy_bench(const gpu_session& gpu_in, const copylat_options& options, std::uint64_t bytes);
  const gpu_session& gpu;
  device_memory memory;
  gdr_session gdr;
  gdr_buffer buffer;
  host_memory host;  // page-locked: fair to cuMemcpy; CPU copies do not care
  // Throws (the tool fails) if the first `bytes` of the device buffer at `offset` are not those of the host buffer.
  void verify_device(std::uint64_t offset, std::uint64_t bytes, const std::string& description) const;
  // The first `bytes` of the host buffer (all of it by default) get bytes that depend on the seed.
  void fill_host(unsigned seed, std::uint64_t bytes = ~std::uint64_t{0}) const;
};

std::vector<std::uint64_t> powers_of_two_up_to(std::uint64_t limit);

// Each prints its part and adds rows to the results. Throws on mismatches.
void run_stock_shape(copy_bench& bench, const copylat_options& options, result_file& results);
void run_comparison(copy_bench& bench, const copylat_options& options, result_file& results);
void run_alignments(copy_bench& bench, const copylat_options& options, result_file& results);
void run_batch(copy_bench& bench, const copylat_options& options, result_file& results);

}  // namespace pl::tools
