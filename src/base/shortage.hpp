// SPDX-License-Identifier: Apache-2.0
// Errors that say nothing about what was asked for: the process or its host is short of something, and may not be later.
#pragma once

#include <cerrno>

namespace pl {

// Short of memory or of file descriptors.
constexpr bool is_shortage(int code) noexcept { return code == ENOMEM || code == EMFILE || code == ENFILE; }

// The same, or of space.
constexpr bool is_shortage_or_full(int code) noexcept { return code == ENOSPC || is_shortage(code); }

}  // namespace pl
