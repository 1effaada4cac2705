// SPDX-License-Identifier: Apache-2.0
// Replaces link_transport.cpp and ucx_transport.cpp in builds without the messaging layer.
#include "tools/common/tool.hpp"
#include "tools/p2p/link_transport.hpp"
#include "tools/p2p/ucx_transport.hpp"

namespace pl::p2p {
namespace {

constexpr const char* kMissing = "this build has no UCX in it: it was made without UCX's headers (Debian: libucx-dev)";

}  // namespace

std::unique_ptr<transport> open_link(const cu::driver_table* /*cuda*/, messaging::bootstrap& /*with*/) {
  throw tools::tool_failure(kMissing);
}
std::unique_ptr<transport> open_ucx_transport(bool /*device_memory*/, messaging::bootstrap& /*with*/) {
  throw tools::tool_failure(kMissing);
}

}  // namespace pl::p2p
