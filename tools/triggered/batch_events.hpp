// SPDX-License-Identifier: Apache-2.0
// How far a CPU runs ahead of a stream: a few batches, and then it waits for the oldest.
#pragma once

#include <array>

#include "tools/triggered/bench_rank.hpp"

namespace pl::async {

class batch_events {
 public:
  // Performance: the thread spins. Economy: it sleeps until the GPU's interrupt.
  batch_events(const bench_rank& session, triggered::run_mode mode);
  ~batch_events();
  batch_events(const batch_events&) = delete;
  batch_events& operator=(const batch_events&) = delete;

  void wait_for_room();
  void end_batch();
  void wait_for_all();

 private:
  void wait_for(cu::event_t event) const;
  const bench_rank& session_;
  const triggered::run_mode mode_;
  std::array<cu::event_t, 3> events_{};
  std::size_t queued_ = 0;
};

}  // namespace pl::async
