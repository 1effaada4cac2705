// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/arguments.hpp"

#include <cstdlib>

#include "base/text.hpp"
#include "tools/common/tool.hpp"
#include "tools/common/word_list.hpp"

namespace pl::async {

using tools::split_list;
using tools::tool_failure;

std::vector<std::size_t> sizes_in(const char* option, const std::string& text) {
  std::vector<std::size_t> out;
  for (const auto& word : split_list(text)) {
    const auto size = parse_size(word);
    if (!size || *size == 0 || *size % 8 != 0 || *size > (1u << 30))
      throw tool_failure(format("%s: \"%s\" is not a size of 8 bytes to 1G that 8 divides", option, word.c_str()));
    out.push_back(*size);
  }
  return out;
}

std::vector<std::uint64_t> times_in(const char* option, const std::string& text) {
  std::vector<std::uint64_t> out;
  for (const auto& word : split_list(text)) {
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    if (word.empty() || *end != '\0' || !(value >= 0 && value <= 1e6))
      throw tool_failure(format("%s: \"%s\" is not a time of 0 to 1000000 us", option, word.c_str()));
    out.push_back(static_cast<std::uint64_t>(value * 1e3));
  }
  return out;
}

std::vector<int> integers_in(const char* option, const std::string& text, int lowest, int highest) {
  std::vector<int> out;
  for (const auto& word : split_list(text)) {
    const auto value = parse_integer(word);
    if (!value || *value < lowest || *value > highest)
      throw tool_failure(format("%s: \"%s\" is not a number from %d to %d", option, word.c_str(), lowest, highest));
    out.push_back(static_cast<int>(*value));
  }
  return out;
}

}  // namespace pl::async
