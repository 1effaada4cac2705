// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/pattern.hpp"

namespace pl::p2p {

void fill_pattern(std::span<std::uint8_t> data, std::uint64_t iteration) {
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = pattern_byte(i, data.size(), iteration);
}

std::size_t count_errors(std::span<const std::uint8_t> data, std::uint64_t iteration) {
  std::size_t errors = 0;
  for (std::size_t i = 0; i < data.size(); ++i) errors += data[i] != pattern_byte(i, data.size(), iteration) ? 1 : 0;
  return errors;
}

}  // namespace pl::p2p
