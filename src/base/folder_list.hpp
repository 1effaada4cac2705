// SPDX-License-Identifier: Apache-2.0
// What a folder holds, or why that is not known: std::filesystem's loops throw, or end early and say nothing.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace pl {

// The paths of all entries, in no order. The error is that of the system call; its message is only the reason, to be put
// behind the path. Thread-safe.
result<std::vector<std::filesystem::path>> list_folder(const std::string& folder);

// Whether a regular file has this name, also by a symbolic link. A name that does not exist is none. Errors as above.
result<bool> has_regular_file(const std::filesystem::path& path);

}  // namespace pl
