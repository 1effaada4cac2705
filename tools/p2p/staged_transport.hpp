// SPDX-License-Identifier: Apache-2.0
// Device memory over a library that cannot reach it: copied to the host before a send and from it after a receive, as a
// program without a GPU-aware MPI has to. The copies are part of what is measured.
#pragma once

#include <memory>

#include "tools/common/gpu.hpp"
#include "tools/p2p/transport.hpp"

namespace pl::p2p {

// `gpu` must outlive the result.
std::unique_ptr<transport> stage_through_host(std::unique_ptr<transport> below, const tools::gpu_session& gpu);

}  // namespace pl::p2p
