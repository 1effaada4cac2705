// SPDX-License-Identifier: Apache-2.0
// Selects how a flag is written to a peer GPU's memory. Runs before the first channel to that GPU is used.
#pragma once

#include <string>

#include "copy/gpu_context.hpp"
#include "triggered/flag_words.hpp"
#include "triggered/peer_executor.hpp"

namespace pl::triggered {

struct self_test_outcome {
  flag_writer writer = flag_writer::direct;
  std::string reason;  // why the earlier methods were not selected; empty for the first
};

// Tries direct, copied, kernel, and selects the first that the driver accepts and whose flag never arrives before the data
// in several rounds. In each round a copy engine writes a pattern into the peer's self_test_data, the flag follows, and
// another stream of this GPU reads back first the flag, then the data. One-sided; takes a millisecond, or a second when a
// flag does not arrive. It detects a method that is refused, lost, or grossly out of order; the litmus programs for real
// GPUs check the peer's own view. ENOTSUP with all reasons: no method works. `theirs` is the peer's gpu_words as this GPU
// reaches them, `index` selects ours.
result<self_test_outcome> choose_writer(const copy::gpu_context& context, const peer_methods& methods, cu::device_ptr theirs,
                                        const word_pool& words, unsigned index);

}  // namespace pl::triggered
