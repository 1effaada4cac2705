// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/survivor_claim.hpp"

#include <cstring>

namespace pl::messaging {
namespace {

constexpr std::uint32_t kGone = 1u << 31;  // flag in an incarnation: the rank is gone

template <class Number>
void append(std::string& out, Number value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  out.append(raw, sizeof raw);
}

}  // namespace

std::string peer_info_of(const std::string& host, const survivor_claim* claim) {
  std::string out = host;
  if (claim == nullptr) return out;
  out += '\0';
  append(out, claim->run);
  for (const auto& each : claim->ranks) append(out, each.incarnation | (each.is_gone ? kGone : 0));
  return out;
}

std::pair<std::string, std::optional<survivor_claim>> parse_peer_info(const std::string& text, int size) {
  const auto end = text.find('\0');
  std::pair<std::string, std::optional<survivor_claim>> out{text.substr(0, end), std::nullopt};
  const auto count = static_cast<std::size_t>(size);
  survivor_claim claim;
  if (end == std::string::npos || text.size() - end - 1 != sizeof claim.run + count * sizeof(std::uint32_t)) return out;
  const char* position = text.data() + end + 1;
  std::memcpy(&claim.run, position, sizeof claim.run);
  for (position += sizeof claim.run; claim.ranks.size() < count; position += sizeof(std::uint32_t)) {
    std::uint32_t word = 0;
    std::memcpy(&word, position, sizeof word);
    claim.ranks.push_back({word & ~kGone, (word & kGone) != 0});
  }
  out.second = std::move(claim);
  return out;
}

}  // namespace pl::messaging
