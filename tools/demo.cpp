// SPDX-License-Identifier: Apache-2.0
#include "tool.hpp"
namespace pl::tools {
int run_demo(const invocation&) { throw tool_failure("not built yet"); }
}  // namespace pl::tools
