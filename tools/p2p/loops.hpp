// SPDX-License-Identifier: Apache-2.0
// The measured loops, on one transport and at one size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/p2p/buffers.hpp"
#include "tools/p2p/transport.hpp"

namespace pl::p2p {

// Tags as OSU's programs use them.
inline constexpr int kPingTag = 1;
inline constexpr int kWindowTag = 100;
inline constexpr int kReverseTag = 10;  // bibw: from rank 1 to rank 0
inline constexpr int kAnswerTag = 101;
inline constexpr std::size_t kAnswerBytes = 4;

struct loop_plan {
  std::size_t size_bytes = 0;
  int iterations = 0;
  int warm_up = 0;
  int window = 1;  // messages in flight; latency has one
  int pairs = 1;   // rank r works with r + pairs; further ranks only take part in barriers
  bool validate = false;
  int validation_warm_up = 0;  // exchanges before the measured one of a validated iteration
  bool multiple_buffers = false;
  bool barrier_each_iteration = false;  // also without validation
  bool consume = false;
};

struct loop_outcome {
  std::vector<double> samples_ns;  // one for each iteration after the warm-up, on ranks that measure; else empty
  std::int64_t errors = 0;         // wrong bytes of all ranks
};

// A sample is one round trip. Both sides of every pair measure.
loop_outcome run_latency(transport& world, buffer_pool& buffers, const loop_plan& plan);
// A sample is one window until its answer. Measured by the senders.
loop_outcome run_bandwidth(transport& world, buffer_pool& buffers, const loop_plan& plan);
// A sample is one window each way, complete at this rank. Measured by both.
loop_outcome run_bidirectional(transport& world, buffer_pool& buffers, const loop_plan& plan);

}  // namespace pl::p2p
