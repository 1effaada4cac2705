// SPDX-License-Identifier: Apache-2.0
// The limit of stacks (ulimit -s) counts for the first thread, and glibc gives each other thread as much as it says at
// start. A small one would end a server by SIGSEGV in mid-operation.
#pragma once

#include "base/status.hpp"

namespace pl::tools {

// First in main(). Raises a small limit as far as the system allows, and gives new threads enough whatever it is.
void raise_stack_limit() noexcept;
// ENOMEM: what the limit is, and how to raise it.
[[nodiscard]] status check_stack_limit();

}  // namespace pl::tools
