// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>

#include "base/text.hpp"
#include "tools/gate/gate.hpp"

namespace pl::gate {
namespace {

constexpr unsigned kFirstNvlink5 = 144, kLastNvlink5 = 150;
constexpr unsigned kRecoveryAction = 154;  // sums up what other errors want

// NVLink errors of Blackwell name their severity, "Nonfatal" or "Fatal"; a change of the recovery action names the new one,
// as in "from 0x0 (None) to 0x2 (Node Reboot Required)".
bool is_fatal(unsigned number, const std::string& text) {
  if (number >= kFirstNvlink5 && number <= kLastNvlink5) return text.find(" Fatal") != std::string::npos;
  if (number != kRecoveryAction) return false;
  const std::size_t change = text.rfind(" to ");
  if (change == std::string::npos) return false;
  return text.find("Required", change) != std::string::npos || text.find("Drain and Reset", change) != std::string::npos;
}

}  // namespace

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
    if (number && *number > 0 && *number < 100'000) {
      const auto xid = static_cast<unsigned>(*number);
      out.push_back({log.substr(offset, close - offset), xid, is_fatal(xid, log.substr(end, line_end - end))});
    }
    offset = end;
  }
  return out;
}

// As NVIDIA's catalogue of Xid errors (docs.nvidia.com/deploy/xid-errors, Ampere and newer) has it: the immediate action is
// a reset of the GPU, a restart of the machine, a look at the board, or a procedure for ECC or NVLink errors. It has no
// action yet for 162 to 172, which come with other numbers or say that the power is smoothed no longer.
bool needs_repair(const xid_event& one) {
  static constexpr std::array kRepair = {46u,  48u,  54u,  62u,  64u,  74u,  79u,  95u,  109u, 110u,
                                         119u, 120u, 136u, 140u, 143u, 151u, 155u, 156u, 158u};
  return one.is_fatal || std::find(kRepair.begin(), kRepair.end(), one.number) != kRepair.end();
}

}  // namespace pl::gate
