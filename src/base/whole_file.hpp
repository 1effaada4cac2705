// SPDX-License-Identifier: Apache-2.0
// Files as wholes: read to their ends, and written so that who reads meanwhile sees all of it or nothing.
#pragma once

#include <string>
#include <string_view>

#include "base/status.hpp"

namespace pl {

// Writes `text` to the file at `path`, or leaves it as it was. A device, a pipe or a link is opened and written to,
// never replaced, so a failure may leave a part there. `mode` is for a new file, minus the umask. The error is that of
// the failed system call, with only its text as the message. Thread-safe for different paths.
status write_whole_file(const std::string& path, std::string_view text, unsigned mode = 0666);

// To its end. An error is an error, also in the middle: the iterators of std::ifstream throw it, without a name. Its message
// is the system's text alone.
result<std::string> read_whole_file(const std::string& path);
// The same; empty if it cannot be read, for facts that a machine may not tell.
std::string file_text_or_empty(const std::string& path);

// False: something is there that write_whole_file() does not replace, so each call adds to what was written before.
bool is_replaceable(const std::string& path);

}  // namespace pl
