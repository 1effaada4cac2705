// SPDX-License-Identifier: Apache-2.0
// Executor X: the stream copies into pinned memory and rings a doorbell; proxy threads transfer the bytes and store them
// through CPU mappings. For GPUs that cannot reach each other, on one node (shm_proxy.hpp) or two (message_proxy.hpp).
#pragma once

#include <memory>

#include "copy/gpu_context.hpp"
#include "triggered/end_exchange.hpp"
#include "triggered/event_wakeup.hpp"
#include "triggered/executor.hpp"
#include "triggered/message_proxy.hpp"
#include "triggered/proxy_thread.hpp"
#include "triggered/shm_put_queue.hpp"

namespace pl::triggered {

struct proxy_parts {
  const copy::gpu_context* gpu = nullptr;
  messaging::messenger* messages = nullptr;
  proxy_thread* proxy = nullptr;
  receive_slots* windows = nullptr;
  staging_pool* slots = nullptr;
  shm_queue_pool* shm_queues = nullptr;  // null: treat the peer as a process on another host
  event_wakeup* wakeup = nullptr;
  cu::function_t put_kernel = nullptr;     // stream_put; null: the copy engine moves everything
  cu::function_t spread_kernel = nullptr;  // stream_put_spread
};

// Agrees with the peer's end on the transport, pins memory and adds the channel's task to the proxy thread. ENOTSUP: the CPU
// cannot reach the words of this GPU. `is_other_process`: the peer is another process; an end in this process could not
// answer during the same call. What `parts` names must outlive the result.
//
// A put of more than 256 chunks (32 MiB) may block in the driver until its stream has reached it.
std::unique_ptr<executor_setup> set_up_proxy_executor(const proxy_parts& parts, std::shared_ptr<channel_core> core,
                                                      bool is_other_process);

}  // namespace pl::triggered
