// SPDX-License-Identifier: Apache-2.0
// Files that others read while they are written anew: whole or not at all.
#pragma once

#include <string>
#include <string_view>

#include "base/status.hpp"

namespace pl {

// The file at `path` has `text` afterwards, or is as it was. A device, a pipe or a link is opened and written to, never
// replaced, so a failure may leave a part there. `mode`: of a new file, less the umask. The error is that of the system call
// that failed, with its text alone as the message. Thread-safe for different paths.
status write_whole_file(const std::string& path, std::string_view text, unsigned mode = 0666);

// False: something is there that write_whole_file() does not replace, so each call adds to what was written before.
bool is_replaceable(const std::string& path);

}  // namespace pl
