// SPDX-License-Identifier: Apache-2.0
// Which way of writing a flag into a peer GPU's memory works here: tried before the first channel to it is used.
#pragma once

#include <string>

#include "copy/gpu_context.hpp"
#include "triggered/flag_words.hpp"
#include "triggered/peer_executor.hpp"

namespace pl::stream {

struct litmus_outcome {
  flag_writer writer = flag_writer::direct;
  std::string why;  // why the ways before it were not taken; empty for the first
};

// direct, copied, kernel: the first that the driver accepts and whose flag never comes before the data in some rounds. In
// each a copy engine writes a pattern into the peer's litmus_data, the flag follows, and another stream of this GPU reads
// back first the flag, then the data. One side only, a millisecond, a second when a flag does not come.
// It catches a way that is refused, lost, or grossly out of order; the peer's own view is what the litmus programs for real
// GPUs look at. ENOTSUP with all reasons: none works.
// `theirs` is the peer's gpu_words as this GPU reaches them, index names ours.
result<litmus_outcome> choose_writer(const copy::gpu_context& context, const peer_ways& ways, cu::device_ptr theirs,
                                     const word_pool& words, unsigned index);

}  // namespace pl::stream
