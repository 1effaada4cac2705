// SPDX-License-Identifier: Apache-2.0
// One operation of a router on its way, over as many servers as it takes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "store/client/operation.hpp"

namespace pl::store_client {

class client;

class routed_operation {
 public:
  // Makes the operation anew for the server that is tried, with the number that the pool has there.
  using maker = std::function<operation_ptr(client&, std::uint32_t pool)>;

  // ---- what was asked; constant once started. `then` and `event_fd` may be set before.
  std::uint32_t pool = 0;
  std::string key;
  std::uint64_t bytes = 0;  // for which a try's time must do
  bool changes = false;     // put, erase: carries one number through all its tries
  maker make;
  clock::time_point deadline;
  std::function<void(const reply&)> then;  // called once, without locks, by a thread of the router's or its clients'
  int event_fd = -1;                       // written once, the caller's

  // ---- how far it is; of whoever has it in hand
  store_wire::sequence who;
  std::chrono::milliseconds pause{0};
  std::uint64_t epoch = 0;  // of the map by which it was sent

  // ---- what became of it; valid once done
  reply got;
  bool done = false;  // the router's lock guards it
};
using routed_ptr = std::shared_ptr<routed_operation>;

}  // namespace pl::store_client
