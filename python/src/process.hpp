// SPDX-License-Identifier: Apache-2.0
// Whether this still is the process that made an object: in a forked child neither CUDA nor mappings of GPU memory are
// there.
#pragma once

#include <cstdint>

namespace pl::py {

// Another number in every forked child. One load.
std::uint32_t process_number() noexcept;

}  // namespace pl::py
