// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstdlib>
#include <string>

namespace pl {

// The absolute path with links followed; empty if nothing is there.
inline std::string real_path(const char* path) {
  char resolved[PATH_MAX];
  return realpath(path, resolved) != nullptr ? resolved : "";
}

}  // namespace pl
