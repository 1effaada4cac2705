// SPDX-License-Identifier: Apache-2.0
// Whole files: read to the end, and rewritten so that a reader sees all of the new text or none of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace pl {

// Writes `text` to the file at `path`, or leaves it as it was. A device, a pipe or a link is opened and written to,
// never replaced, so a failure may leave a part there. `mode` is for a new file, minus the umask. The error is that of
// the failed system call, with only its text as the message. Thread-safe for different paths.
status write_whole_file(const std::string& path, std::string_view text, unsigned mode = 0666);

// Reads to the end. An error in the middle is an error, too (std::ifstream's iterators throw it, without the file's name).
// More than `max_bytes` are EFBIG: users name devices without an end. A pipe is read until its writers have closed it, as a
// shell's <(command); one without a writer is empty, and nothing waits for one. The message is only the system's text.
result<std::string> read_whole_file(const std::string& path, std::size_t max_bytes = SIZE_MAX);
// The same for an open file, from its present place on; makes it blocking.
result<std::string> read_to_end(int fd, std::size_t max_bytes = SIZE_MAX);
// The same, but empty if the file cannot be read: for facts that some machines do not tell.
std::string file_text_or_empty(const std::string& path);

// False if there is something that write_whole_file() does not replace, so that each call adds to what was written
// before.
bool is_replaceable(const std::string& path);

}  // namespace pl
