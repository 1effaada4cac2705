// SPDX-License-Identifier: Apache-2.0
// The measured loop of a collective at one size, as the OSU programs have it: one call, then a barrier outside of the
// timing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tools/p2p/buffers.hpp"
#include "tools/p2p/collective_calls.hpp"
#include "tools/p2p/loops.hpp"
#include "tools/p2p/settings.hpp"

namespace pl::p2p {

class collective_loop {
 public:
  // Buffers of one rank among `ranks`.
  collective_loop(buffer_source& memory, benchmark kind, memory_kind place, std::size_t size_bytes, int rank, int ranks);
  collective_loop(const collective_loop&) = delete;
  collective_loop& operator=(const collective_loop&) = delete;

  // At rank 0 a sample is the mean over the ranks of one call's time; elsewhere there is none. Errors: wrong bytes on
  // all ranks.
  loop_outcome run(transport& world, const loop_plan& plan);
  // Means of the ranks' times in the last run, at rank 0.
  double fastest_rank_ns() const { return fastest_rank_ns_; }
  double slowest_rank_ns() const { return slowest_rank_ns_; }

 private:
  void call(collective_calls& library);
  void prepare(std::uint64_t iteration);
  std::int64_t verify(std::uint64_t iteration) const;
  std::vector<std::uint8_t> source_bytes(int rank, std::uint64_t iteration) const;
  std::vector<std::uint8_t> expected_bytes(std::uint64_t iteration) const;
  std::vector<double> mean_over_ranks(transport& world, const std::vector<double>& mine);

  const benchmark kind_;
  const std::size_t bytes_;
  const int rank_, ranks_;
  std::vector<std::size_t> counts_, lengths_, offsets_;  // reduce_scatter: elements; all_to_all_v: bytes
  std::unique_ptr<message_buffer> source_, destination_;
  double fastest_rank_ns_ = 0, slowest_rank_ns_ = 0;
};

}  // namespace pl::p2p
