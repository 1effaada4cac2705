// SPDX-License-Identifier: Apache-2.0
// Finds the CUDA streams that produce the values of tensors. Peerlane's copies do not run on the caller's streams, so a copy
// must wait for the work that is queued there, on the CPU or as part of the copy.
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

// Returns the streams to wait for. `after`: "auto" means the current stream of each tensor's library, None no stream, and
// anything else one stream. Idle streams are omitted, so the result is usually empty. Blocks for arrays of JAX, which have
// no stream. EBUSY: a stream is being captured into a graph; nothing was called on it, so the capture stays valid.
std::vector<stream_handle> busy_streams(nb::handle after, std::span<const tensor* const> tensors);

// Blocks without the GIL until all work queued on these streams has ended. Ctrl-C ends the wait.
void wait_for(std::span<const stream_handle> streams);

}  // namespace pl::py
