// SPDX-License-Identifier: Apache-2.0
// The boards behind NVML's handles: what nvml.cpp (links, clocks, errors) and nvml_device.cpp (identity, memory, use) share.
//
// The environment is read again whenever a device is looked up, so that a test can raise a counter between two reads.
#pragma once

#include <cstddef>

#include "cuda/nvml_abi.hpp"
#include "sim/settings.hpp"

#define PL_NVML_API extern "C" __attribute__((visibility("default"))) int

namespace pl::sim {

using namespace nvml;  // NOLINT: these files speak NVML's types

struct board {
  std::size_t number = 0;
  link_settings links;
};

// A copy, since another thread may look the device up anew.
struct board_lookup {
  int rc = code::invalid_argument;
  board found;
  std::size_t boards = 0;
};

// What a handle stands for; code::uninitialized outside of nvmlInit and nvmlShutdown.
board_lookup find_board(device_t handle);

// The same for calls without a device.
int check_nvml();

// Reads the environment anew. The handle of a board, or null if there are not so many.
device_t open_board(std::size_t number);
std::size_t count_boards();

}  // namespace pl::sim
