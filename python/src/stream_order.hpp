// SPDX-License-Identifier: Apache-2.0
// Which CUDA stream produces a tensor's values, and waiting for it. Copies of ours do not run on the caller's streams, so
// what the caller has queued must be over, or be waited for by the copy.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/driver_abi.hpp"
#include "tensor.hpp"

namespace pl::py {

using stream_handle = cu::stream_t;  // a CUstream; 0x1 and 0x2 are CUDA's default streams

// A stream as users name it: an integer (CUstream), an object of PyTorch (cuda_stream), CuPy (ptr), or with
// __cuda_stream__(). None is the default stream. TypeError otherwise.
stream_handle stream_of(nb::handle object);

// What `after` says: "auto" is the current stream of each tensor's library, None nothing, else a stream. Streams that are
// idle are left out, so usually the answer is empty. Values of JAX are waited for here. EBUSY: a stream is being captured
// into a graph; it was not touched, so the capture stays whole.
std::vector<stream_handle> busy_streams(nb::handle after, std::span<const tensor* const> tensors);

// Blocks, without the GIL, until they have done what was queued. Ctrl-C ends it.
void wait_for(std::span<const stream_handle> streams);

}  // namespace pl::py
