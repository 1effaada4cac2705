// SPDX-License-Identifier: Apache-2.0
#include "sim/identity.hpp"

#include <cstdio>
#include <cstring>

#include "base/text.hpp"

namespace pl::sim {

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void board_uuid(std::size_t board, unsigned char (&bytes)[16]) {
  std::memcpy(bytes, "Peerlane", 8);
  const std::uint64_t low = mix(board + 1);
  std::memcpy(bytes + 8, &low, 8);
}

std::string board_uuid_text(std::size_t board) {
  unsigned char bytes[16];
  board_uuid(board, bytes);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += format("%02x", bytes[i]);
  }
  return text;
}

std::string board_pci_id(std::size_t board) { return format("0000:%02x:%02x.0", kBoardBus, static_cast<unsigned>(board)); }

int find_board_by_pci_id(const char* text, std::size_t boards) {
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) return -1;
  const bool is_known = domain == 0 && bus == kBoardBus && slot < boards && function == 0;
  return is_known ? static_cast<int>(slot) : -2;
}

}  // namespace pl::sim
