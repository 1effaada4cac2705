// SPDX-License-Identifier: Apache-2.0
// Streams that are being captured into a graph: a copy that happens once cannot be ordered with them.
#pragma once

#include "cuda/driver_table.hpp"

namespace pl::copy {

// EBUSY: a graph would repeat the order at each launch, but the copies happen once.
status refuse_capture(const cu::driver_table& cuda, cu::stream_t stream);
// EINVAL: the stream is not being captured, or its capture has failed.
status require_capture(const cu::driver_table& cuda, cu::stream_t stream);
// Null, the legacy stream and the thread's own: which stream they name depends on the current context.
bool is_default_stream(cu::stream_t stream);

}  // namespace pl::copy
