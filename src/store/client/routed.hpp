// SPDX-License-Identifier: Apache-2.0
// One operation of a router, with its attempts on one server after another.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "store/client/operation.hpp"

namespace pl::store_client {

class client;

class routed_operation {
 public:
  // Creates the operation for one attempt: `pool` is the pool's number on that server.
  using maker = std::function<operation_ptr(client&, std::uint32_t pool)>;

  // ---- the request; constant once started. `callback` and `event_fd` may be set before.
  std::uint32_t pool = 0;
  std::string key;
  std::uint64_t bytes = 0;  // size that the time of an attempt allows for
  bool changes = false;     // put, erase: all attempts carry the same number
  maker make;
  clock::time_point deadline;
  std::function<void(const reply&)> callback;  // called once, without locks, by a thread of the router or its clients
  int event_fd = -1;                           // written once; the caller owns it

  // ---- progress; owned by the thread that handles the current attempt
  store_protocol::sequence request_number;  // set in advance if the request was sent before with this number
  std::chrono::milliseconds pause{0};
  std::uint64_t epoch = 0;  // epoch of the map by which it was sent

  // The current attempt; guarded by the router's lock
  std::weak_ptr<client> server;
  operation_ptr attempt;

  // ---- the result; valid once done
  reply got;
  bool done = false;  // guarded by the router's lock
};
using routed_ptr = std::shared_ptr<routed_operation>;

}  // namespace pl::store_client
