// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>

#include "base/text.hpp"
#include "tools/gate/gate.hpp"

namespace pl::gate {

std::vector<xid_event> parse_xids(const std::string& log) {
  static constexpr std::string_view kMark = "NVRM: Xid (PCI:";
  std::vector<xid_event> out;
  for (std::size_t offset = 0; (offset = log.find(kMark, offset)) != std::string::npos;) {
    offset += kMark.size();
    const std::size_t line_end = std::min(log.find('\n', offset), log.size());
    const std::size_t close = log.find("): ", offset);
    if (close == std::string::npos || close > line_end) continue;
    const std::size_t digits = close + 3;
    std::size_t end = digits;
    while (end < line_end && std::isdigit(static_cast<unsigned char>(log[end])) != 0) ++end;
    const auto number = parse_integer(log.substr(digits, end - digits));
    if (number && *number > 0 && *number < 100'000)
      out.push_back({log.substr(offset, close - offset), static_cast<unsigned>(*number)});
    offset = end;
  }
  return out;
}

// NVIDIA's catalogue of Xid errors: those whose first cause it names is hardware, ECC, a link or a board that is lost.
bool is_hardware_xid(unsigned number) {
  static constexpr std::array kHardware = {48u,  54u,  61u,  62u,  63u,  64u,  71u,  74u,  79u,  92u,  94u,  95u,
                                           110u, 119u, 120u, 136u, 140u, 143u, 145u, 149u, 151u, 155u, 156u, 158u};
  return std::find(kHardware.begin(), kHardware.end(), number) != kHardware.end();
}

}  // namespace pl::gate
