// SPDX-License-Identifier: Apache-2.0
// What a simulated board is called. Used by both simulated libraries, which must agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pl::sim {

inline constexpr const char* kBoardName = "Peerlane Simulated GPU";
inline constexpr const char* kKernelDriverVersion = "580.0.0";  // numbers, since programs read them; no release has these
inline constexpr unsigned kBoardBus = 0xfe;
inline constexpr int kComputeMajor = 9;
inline constexpr int kComputeMinor = 0;

std::uint64_t mix(std::uint64_t x);  // splitmix64's finaliser

void board_uuid(std::size_t board, unsigned char (&bytes)[16]);
std::string board_uuid_text(std::size_t board);  // "GPU-...."
std::string board_pci_id(std::size_t board);     // "0000:fe:00.0"

// The board of "DOMAIN:BUS:SLOT.FUNCTION"; -1: the text is none, -2: no such board among `boards`.
int find_board_by_pci_id(const char* text, std::size_t boards);

}  // namespace pl::sim
