// SPDX-License-Identifier: Apache-2.0
// Files that are opened by a name which somebody else may have given to a FIFO, a device or a folder.
#pragma once

#include <string>

#include "base/status.hpp"

namespace pl {

// Opens a regular file as open(2) does, with O_CLOEXEC, and returns the descriptor, which the caller closes. Whatever else
// has that name is refused without waiting: the open() of a FIFO waits for its other end, for ever if nobody comes. The
// error is EISDIR for a folder, ENOTSUP for another kind, otherwise that of the system call. Its message is only the reason,
// to be put behind the path. Thread-safe.
result<int> open_regular_file(const std::string& path, int flags, unsigned mode = 0600);

// Fails as open_regular_file() if something that is no regular file has this name. A name that does not exist is good.
status need_regular_file(const std::string& path);

// Fails for a FIFO in a folder, because open() would wait for its other end. A shell's <(command) is good: somebody has
// opened it already.
status need_no_named_pipe(const std::string& path);

}  // namespace pl
