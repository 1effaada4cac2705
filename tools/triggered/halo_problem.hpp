// SPDX-License-Identifier: Apache-2.0
// A field over blocks, one for each rank, that is computed on the GPUs and checked against the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tools/triggered/bench_rank.hpp"
#include "tools/triggered/block_place.hpp"
#include "tools/triggered/halo_ways.hpp"

namespace pl::async {

using send_halo = std::function<void(const halo&)>;

class halo_problem {
 public:
  virtual ~halo_problem() = default;
  // Steps of a period, after which everything lies where it lay before: an even number of halos.
  virtual int steps_of_period() const = 0;
  virtual std::uint64_t updates_of_period() const = 0;  // of points
  // Launches one period; `send` after each kernel whose edges the neighbours need.
  virtual void launch_period(const send_halo& send) const = 0;
  // The first field, and what lies around it.
  virtual void reset() const = 0;
  // After whole periods, on the CPU; and what it should be, with the points that the CPU then has to compute.
  virtual std::vector<double> field() const = 0;
  virtual std::vector<double> reference(int periods) const = 0;
  virtual std::uint64_t reference_work(int periods) const = 0;  // the same on every rank
};

// Size of the windows for blocks of n x n: four edges of doubles, twice.
constexpr std::size_t halo_window_bytes(int n) { return 2 * 4 * 8 * static_cast<std::size_t>(n); }

// The kernels on blocks, and where edges and ghosts lie in the windows of a bench_rank.
class block_kernels {
 public:
  block_kernels(bench_rank& session, const block_place& place);
  ~block_kernels();
  block_kernels(const block_kernels&) = delete;
  block_kernels& operator=(const block_kernels&) = delete;

  bench_rank& session() const { return session_; }
  const block_place& place() const { return place_; }
  cu::function_t find(const char* kernel) const;
  // One thread for each point, if the GPU has that many.
  void launch(cu::function_t kernel, std::uint64_t points, void** parameters) const;
  std::size_t row_bytes() const { return 8 * static_cast<std::size_t>(place_.n); }
  std::size_t field_bytes() const { return row_bytes() * static_cast<std::size_t>(place_.n); }
  // Edges of n points (the block's or fewer), in the place of even or odd exchanges.
  halo edges_of(std::uint64_t exchange, int n) const {
    return {exchange % 2 * kSides * row_bytes(), row_bytes(), 8 * static_cast<std::size_t>(n)};
  }
  // `values`: four rows, for both places.
  void set_ghosts(const std::vector<double>& values) const;
  std::vector<double> read_field(std::uint64_t field) const;

 private:
  bench_rank& session_;
  const block_place place_;
  cu::module_t module_ = nullptr;
};

}  // namespace pl::async
