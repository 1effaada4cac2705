// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <iterator>

namespace pl::test {

// Descriptors open in this process, for leak checks.
inline int open_descriptor_count() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all))) - 1;  // the directory's own
}

}  // namespace pl::test
