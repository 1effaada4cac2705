// SPDX-License-Identifier: Apache-2.0
// What a benchmark run is asked to do. The defaults are the constants of the OSU micro-benchmarks 7.0, by which published
// numbers were taken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/common/options.hpp"
#include "tools/p2p/transport.hpp"

namespace pl::p2p {

enum class benchmark {
  latency,
  bandwidth,
  bidirectional,
  multi_bandwidth,
  multi_latency,
  // put, get and atomics
  put_latency,
  put_bandwidth,
  get_latency,
  get_bandwidth,
  fetch_latency,
  compare_latency,
  // collectives
  barrier,
  broadcast,
  gather,
  scatter,
  all_gather,
  reduce,
  all_reduce,
  reduce_scatter,
  all_to_all,
  all_to_all_v,
};

inline bool is_collective(benchmark kind) { return kind >= benchmark::barrier; }
// Collectives of float32 elements.
inline bool has_elements(benchmark kind) {
  return kind == benchmark::reduce || kind == benchmark::all_reduce || kind == benchmark::reduce_scatter;
}
inline bool is_one_sided(benchmark kind) { return kind >= benchmark::put_latency && kind <= benchmark::compare_latency; }
inline bool is_atomic(benchmark kind) { return kind == benchmark::fetch_latency || kind == benchmark::compare_latency; }
inline bool is_latency(benchmark kind) {
  return kind == benchmark::put_latency || kind == benchmark::get_latency || is_atomic(kind) || kind == benchmark::latency ||
         kind == benchmark::multi_latency || is_collective(kind);
}
inline bool has_pairs(benchmark kind) { return kind == benchmark::multi_bandwidth || kind == benchmark::multi_latency; }

inline constexpr std::size_t kLargeMessageBytes = 8192;  // above it fewer iterations
inline constexpr std::size_t kMaxMessageBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMaxCollectiveBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMemoryLimitBytes = std::size_t{512} << 20;
inline constexpr int kWindow = 64;
inline constexpr int kMaxWindow = 1000;
inline constexpr int kValidationWarmUp = 5;
inline constexpr int kMaxValidationWarmUp = 10;
inline constexpr int kVariedWindows[] = {1, 2, 4, 8, 16, 32, 64, 128};

struct repetition {
  int iterations = 0;
  int warm_up = 0;
};

enum class osu_format { v7_0, v7_5 };
enum class arm { ours, ucx, mpi, shim, nccl };
const char* to_string(arm kind);

struct settings {
  benchmark kind = benchmark::latency;

  // OSU's options
  std::optional<std::size_t> min_bytes;  // none: the format's own smallest size
  std::size_t max_bytes = kMaxMessageBytes;
  std::optional<int> iterations;
  std::optional<int> warm_up;
  int window = kWindow;
  bool vary_window = false;
  bool print_rate = true;
  bool multiple_buffers = false;
  bool validate = false;
  int validation_warm_up = kValidationWarmUp;
  bool full = false;
  std::size_t memory_limit_bytes = kMemoryLimitBytes;
  int pairs = 0;  // 0: half of the processes
  bool names_accelerator = false;
  memory_kind source = memory_kind::host;
  memory_kind destination = memory_kind::host;

  // ours
  osu_format format = osu_format::v7_0;
  std::vector<arm> arms{arm::ours};
  bool stage = false;  // device memory goes through the host, for libraries that cannot reach it
  std::vector<double> percentiles;
  int batches = 1;
  bool cold = false;
  int rotate = 1;
  bool consume = false;
  bool show_plan = false;
  std::vector<int> gpus;
  tools::common_options common;  // --json, --cpu

  // how processes come about
  enum class launch_kind { automatic, fork, environment } launch = launch_kind::automatic;
  int processes = 2;
  std::string listen, peer;

  bool asks_for(arm one) const { return std::find(arms.begin(), arms.end(), one) != arms.end(); }
  bool needs_gpu() const { return p2p::needs_gpu(source) || p2p::needs_gpu(destination); }
};

// Iterations and warm-up at one size.
repetition repetition_at(const settings& asked, std::size_t size_bytes);

// Smallest size, then doubled up to the largest. 0 is followed by 1.
std::vector<std::size_t> sizes_of(const settings& asked);

}  // namespace pl::p2p
