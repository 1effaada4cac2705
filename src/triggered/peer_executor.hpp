// SPDX-License-Identifier: Apache-2.0
// Executor P: the front end of this GPU writes into the memory of the peer's GPU. After a call has queued its work, no CPU
// takes part: both processes may even be stopped.
#pragma once

#include "copy/gpu_context.hpp"
#include "triggered/executor.hpp"

namespace pl::triggered {

// How a flag is written to the peer's memory after the data.
enum class flag_writer : std::uint32_t {
  direct = 0,  // the front end writes it: one stream memory operation
  copied = 1,  // written to local memory, then copied by the copy engine: two operations, for links that refuse `direct`
  kernel = 2,  // a kernel of one block
};

const char* name_of(flag_writer writer) noexcept;  // direct, copied, kernel

// What a context has determined about its GPU, for all channels.
struct peer_methods {
  flag_writer writer = flag_writer::direct;
  std::size_t kernel_limit = 8 << 10;     // up to this size, one kernel writes data and flag; 0: there is no kernel
  cu::function_t kernel = nullptr;        // stream_put
  cu::function_t spread_put = nullptr;    // stream_put_spread
  cu::function_t wait_kernel = nullptr;   // stream_wait
  cu::function_t counted_put = nullptr;   // stream_put_counted
  cu::function_t counted_wait = nullptr;  // stream_wait_counted
};

struct peer_words {
  cu::device_ptr theirs = 0;  // the peer's gpu_words of this channel; address for this GPU
  cu::device_ptr ours = 0;    // our gpu_words
  cu::device_ptr host = 0;    // our host_words; address for this GPU
};

std::unique_ptr<executor> make_peer_executor(const copy::gpu_context& context, const peer_methods& methods,
                                             const peer_words& words);

}  // namespace pl::triggered
