// SPDX-License-Identifier: Apache-2.0
// NCCL's send and receive on a stream, as programs that talk through NCCL have them.
#pragma once

#include <memory>

#include "messaging/bootstrap/bootstrap.hpp"
#include "tools/common/gpu.hpp"
#include "tools/p2p/transport.hpp"

namespace pl::p2p {

struct nccl_options {
  // A send goes on in its stream after the call, as programs with NCCL use it, and the next receive waits for both. True: it
  // has ended when the call returns, for runs where the CPU writes to the buffers or frees them.
  bool sends_end_in_call = false;
};

// Collective. libnccl.so.2 as PEERLANE_NCCL_LIBRARY names it, else as the loader finds it. Device memory only, messages in
// order without regard to tags, and what is pending towards all peers is one group, launched by waitall. `gpu` and `group`
// must outlive the result.
std::unique_ptr<transport> open_nccl(const nccl_options& options, const tools::gpu_session& gpu,
                                     messaging::bootstrap& group);

}  // namespace pl::p2p
