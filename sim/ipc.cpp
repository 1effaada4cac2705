// SPDX-License-Identifier: Apache-2.0
// Interprocess handles: to come in the next commit; nothing makes such an allocation yet.
#include "memory.hpp"

namespace pl::sim {

void release_ipc_memory(const allocation&) {}

}  // namespace pl::sim
