// SPDX-License-Identifier: Apache-2.0
// The data that proves a transfer: written to sources, its complement to destinations, and every byte compared afterwards.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "tools/bandwidth/buffer.hpp"
#include "tools/bandwidth/pattern_hash.hpp"
#include "tools/bandwidth/runner.hpp"

namespace pl::bandwidth {

// Kernels do it, on the GPU that has the memory or, for pinned host memory, on the one named; CPU threads do it for pageable
// memory, and for everything in builds without GPU code. Returns when it is done. One thread.
class pattern {
 public:
  explicit pattern(gpu_set& gpus);
  ~pattern();
  pattern(const pattern&) = delete;
  pattern& operator=(const pattern&) = delete;

  status fill(const memory_view& view, std::uint64_t bytes, int near_gpu, std::uint64_t seed);
  // Writes the inverse of what fill would write, so that no byte of it is correct.
  status clear(const memory_view& view, std::uint64_t bytes, int near_gpu, std::uint64_t seed);
  result<mismatch> check(const memory_view& view, std::uint64_t bytes, int near_gpu, std::uint64_t seed);

  // For kernels that only read, on `width` multiprocessors: clears their digests before the first launch, and compares
  // 8 bytes for each thread with the pattern's digest.
  status clear_digests(const memory_view& view);
  result<mismatch> check_read(const memory_view& digests, std::uint64_t bytes, unsigned width, std::uint64_t seed);
  // For kernels that only write: the sequence that begins with the first word of the pattern.
  result<mismatch> check_write(const memory_view& view, std::uint64_t bytes, std::uint64_t seed);

 private:
  struct gpu_resources;  // stream and result memory on one GPU
  result<gpu_resources*> gpu_resources_for(const memory_view& view, int near_gpu);
  status write(const memory_view& view, std::uint64_t bytes, int near_gpu, std::uint64_t seed, std::uint64_t flip);
  status write_by_cpu(const memory_view& view, std::uint64_t bytes, std::uint64_t seed, std::uint64_t flip);
  struct check_call {
    const char* kernel = "bandwidth_check";
    std::uint64_t bytes = 0, seed = 0;
    unsigned width = 0;
  };
  status check_by_gpu(gpu_resources& shop, const memory_view& view, const check_call& call, check_result& out);
  result<mismatch> check_special(const memory_view& view, const check_call& call);
  status check_by_cpu(const memory_view& view, std::uint64_t bytes, std::uint64_t seed, check_result& out);
  status read(const memory_view& view, std::uint64_t offset, std::span<std::byte> out);
  gpu_set& gpus_;
  std::map<int, std::unique_ptr<gpu_resources>> gpu_resources_;
};

}  // namespace pl::bandwidth
