// SPDX-License-Identifier: Apache-2.0
// V-cycles on a rank's block (multigrid_field.hpp). Halos of all levels use the same two places in turn, because what is
// read is always of the last exchange; the rows of the four sides lie equally far apart on each level.
#pragma once

#include "tools/triggered/halo_problem.hpp"

namespace pl::async {

class multigrid_block final : public halo_problem {
 public:
  multigrid_block(bench_rank& session, const block_place& place);  // its n is a power of two

  int steps_of_period() const override { return 1; }
  std::uint64_t updates_of_period() const override { return reference_work(1) / blocks(); }
  void launch_period(const send_halo& send) const override;
  void reset() const override;
  std::vector<double> field() const override { return kernels_.read_field(levels_.front().field[0]); }
  std::vector<double> reference(int periods) const override;
  std::uint64_t reference_work(int periods) const override;

 private:
  struct level {
    int n = 0;
    std::uint64_t field[2] = {}, right = 0;
  };
  std::uint64_t blocks() const {
    return static_cast<std::uint64_t>(kernels_.place().gx) * static_cast<std::uint64_t>(kernels_.place().gy);
  }
  class cycle;

  const block_kernels kernels_;
  const cu::function_t smooth_, restrict_, correct_;
  tools::device_memory memory_;
  std::vector<level> levels_;
  unsigned walls_ = 0;
};

}  // namespace pl::async
