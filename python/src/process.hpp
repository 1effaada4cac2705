// SPDX-License-Identifier: Apache-2.0
// Detects use in a forked child, which has neither CUDA nor the parent's mappings of GPU memory, nor its other threads.
#pragma once

#include <sys/types.h>

namespace pl::py {

// Of this process, the same in all modules. Costs one load.
pid_t process_number() noexcept;

}  // namespace pl::py
