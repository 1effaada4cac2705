// SPDX-License-Identifier: Apache-2.0
// Options whose values are lists.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace pl::tools {

// The parts between commas; an empty part is one too.
inline std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace pl::tools
