// SPDX-License-Identifier: Apache-2.0
// The word operations into which every descriptor is translated: writes and waits, by a stream or by the CPU.
#pragma once

#include <vector>

#include "compat/gdsync/gdsync_memory.hpp"

namespace pl::gds {

struct word_op {
  std::uint32_t* pointer;
  std::uint32_t value;
  int flags;  // of the descriptor, for its memory type
  bool is_wait;
  bool is_flush;  // after the wait
  gds_wait_cond_flag_t cond;
};

// Operations of queue pairs. ENOSYS in a build without the verbs headers, EINVAL for a request that was not prepared.
status gather_send(const gds_send_request_t* request, std::vector<word_op>& ops);
status gather_wait(const gds_wait_request_t* request, std::vector<word_op>& ops);

// In order. If one of them cannot be queued, none is.
status post_on_stream(cu::stream_t stream, const std::vector<word_op>& ops);
// Returns when everything is done; waits spin.
status post_on_cpu(const std::vector<word_op>& ops);

}  // namespace pl::gds
