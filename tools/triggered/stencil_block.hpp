// SPDX-License-Identifier: Apache-2.0
// Jacobi's 5-point iteration on a rank's block. Step s reads field and ghosts (s - 1) % 2, writes field and edges s % 2.
#pragma once

#include <array>

#include "tools/triggered/halo_problem.hpp"

namespace pl::async {

class stencil_block final : public halo_problem {
 public:
  stencil_block(bench_rank& session, const block_place& place);

  int steps_of_period() const override { return 2; }
  std::uint64_t updates_of_period() const override;
  void launch_period(const send_halo& send) const override;
  void reset() const override;
  std::vector<double> field() const override { return kernels_.read_field(fields_[0].get()); }
  std::vector<double> reference(int periods) const override;
  std::uint64_t reference_work(int periods) const override;

 private:
  const block_kernels kernels_;
  const cu::function_t step_;
  tools::device_memory first_;
  std::array<tools::device_memory, 2> fields_;
};

}  // namespace pl::async
