// SPDX-License-Identifier: Apache-2.0
// Executor X: the stream copies into pinned slots and rings; the service threads of both processes carry the bytes and store
// them through CPU mappings. For GPUs that cannot reach each other, on one node or two.
#pragma once

#include <memory>

#include "carrier.hpp"
#include "event_bell.hpp"
#include "executor.hpp"
#include "gpu_context.hpp"
#include "service.hpp"

namespace pl::stream {

struct proxy_parts {
  const copy::gpu_context* gpu = nullptr;
  link::messenger* messages = nullptr;
  service* watch = nullptr;
  landing* windows = nullptr;
  staging_pool* slots = nullptr;
  event_bell* bell = nullptr;
};

// Pins memory and gives the channel's task to the service. ENOTSUP: the CPU cannot reach the words of this GPU.
//
// A put of more than 256 chunks (64 MiB) may block in the driver until its stream has come to it.
result<std::unique_ptr<executor>> make_proxy_executor(const proxy_parts& of, const std::shared_ptr<channel_core>& core);

}  // namespace pl::stream
