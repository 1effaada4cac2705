// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/status.hpp"

namespace pl::store {

// The error of a file of the store, for a reason that does not name the file itself.
inline failure path_failure(const std::string& path, const failure& reason) {
  return {reason.code, "store: " + path + ": " + reason.message};
}

}  // namespace pl::store
