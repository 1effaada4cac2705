// SPDX-License-Identifier: Apache-2.0
// Detects use in a forked child, which has neither CUDA nor the parent's mappings of GPU memory.
#pragma once

#include <cstdint>

namespace pl::py {

// A number that differs in every forked child. Costs one load.
std::uint32_t process_number() noexcept;

}  // namespace pl::py
