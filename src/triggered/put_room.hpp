// SPDX-License-Identifier: Apache-2.0
// The wait that executors P and D queue before a put: until the peer has released enough earlier puts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "triggered/executor.hpp"
#include "triggered/flag_words.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::triggered {

// Address of a graph slot's word in one of the arrays of gpu_words or host_words.
inline std::size_t slot_offset(std::size_t array, int slot) {
  return array + static_cast<std::size_t>(slot) * sizeof(std::uint64_t);
}

// `words`, `host`: addresses of this end's gpu_words and host_words for streams.
inline void wait_for_room(mem_ops& ops, const put_request& request, cu::device_ptr words, cu::device_ptr host) {
  if (request.slot >= 0) {
    const auto ack = words + slot_offset(offsetof(gpu_words, graph_ack), request.slot);
    ops.wait64(ack, 1).write64(ack, 0);
  } else if (request.released != 0) {
    ops.write64(host + offsetof(host_words, put_reached), request.sequence);
    ops.wait64(words + offsetof(gpu_words, ack), request.released);
  }
}

}  // namespace pl::triggered
