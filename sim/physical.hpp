// SPDX-License-Identifier: Apache-2.0
// What a handle of cuMemCreate, cuMulticastCreate or an import stands for.
#pragma once

#include <memory>

#include "sim/object.hpp"

namespace pl::sim {

class multicast_team;

struct physical_memory {
  object_ref memory;                     // null: a multicast object
  std::shared_ptr<multicast_team> team;  // null: memory
  allocation_prop prop{};
  physical_t handle = 0;  // 0 while no handle is out
  unsigned handle_users = 0;
};

// Null: not a handle. Any thread.
std::shared_ptr<physical_memory> find_physical(physical_t handle);
// A handle of it, one more use of the one that is out already.
physical_t hand_out(const std::shared_ptr<physical_memory>& memory);

}  // namespace pl::sim
