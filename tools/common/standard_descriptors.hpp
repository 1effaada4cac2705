// SPDX-License-Identifier: Apache-2.0
// A program may be started without standard input, output or error (`>&-`, a service manager). What it opens next then gets
// their numbers: a line for standard error would be written into a store's file, a socket or an event counter.
#pragma once

namespace pl::tools {

// First in main(). Puts something in each missing place that fails as the closed descriptor did: EBADF for those who read
// standard input or write the others. False if a place stays empty: nothing may be opened then.
[[nodiscard]] bool fill_standard_descriptors() noexcept;

}  // namespace pl::tools
