// SPDX-License-Identifier: Apache-2.0
#include "tools/soak/value_oracle.hpp"

#include <cstring>

namespace pl::soak {
namespace {

// A step of SplitMix64: every bit of the result depends on every bit of the input.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

std::vector<unsigned char> value_bytes(std::uint64_t key, state_number state, std::size_t size_bytes) {
  std::vector<unsigned char> out(size_bytes < kMinValueBytes ? kMinValueBytes : size_bytes);
  const std::uint64_t head[3] = {key, state, out.size()};
  std::memcpy(out.data(), head, sizeof head);
  const std::uint64_t base = mixed(key ^ mixed(state));
  for (std::size_t i = sizeof head; i < out.size(); i += 8) {
    const std::uint64_t word = mixed(base + i);
    std::memcpy(out.data() + i, &word, out.size() - i < 8 ? out.size() - i : 8);
  }
  return out;
}

std::optional<state_number> state_of(std::uint64_t key, const unsigned char* bytes, std::size_t size_bytes) {
  return state_of_part(key, bytes, size_bytes, size_bytes);
}

std::optional<state_number> state_of_part(std::uint64_t key, const unsigned char* bytes, std::size_t size_bytes,
                                          std::size_t whole_bytes) {
  if (size_bytes < kMinValueBytes || size_bytes > whole_bytes) return std::nullopt;
  std::uint64_t head[3];
  std::memcpy(head, bytes, sizeof head);
  if (head[0] != key || head[1] == 0 || head[2] != whole_bytes) return std::nullopt;
  const auto expected = value_bytes(key, head[1], whole_bytes);
  if (std::memcmp(expected.data(), bytes, size_bytes) != 0) return std::nullopt;
  return head[1];
}

std::string text_of(const std::set<state_number>& states) {
  std::string out = "{";
  for (const state_number state : states)
    out += (out.size() > 1 ? ", " : "") + (state == 0 ? "none" : std::to_string(state));
  return out + "}";
}

}  // namespace pl::soak
