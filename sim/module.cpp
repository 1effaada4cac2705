// SPDX-License-Identifier: Apache-2.0
// Modules: to come in the next commit; a context has none yet.
#include "context.hpp"

namespace pl::sim {

void release_context_modules(context_t) {}

}  // namespace pl::sim
