// SPDX-License-Identifier: Apache-2.0
// The object behind a C store: a client of one server or of a cluster, and its operations.
#pragma once

#include <peerlane/store.h>

#include <atomic>
#include <memory>

#include "capi/capi_call.hpp"
#include "capi/live_handles.hpp"
#include "capi/operation_calls.hpp"
#include "capi/slot_table.hpp"
#include "store/client/client.hpp"
#include "store/client/router.hpp"

namespace pl {

struct pending_request {
  store_client::operation_ptr op;  // one of these two
  store_client::routed_ptr routed;
  end_function_ptr function;  // of peerlane_op_then()

  const store_client::reply& got() const { return op ? op->got : routed->got; }
};

struct open_store {
  ~open_store();
  // Ends all operations, whichever threads still use the store. Its functions have returned, or are called by threads of the
  // caller.
  void shut_down();
  std::unique_ptr<copy::planner> copies;        // outlives the client
  std::unique_ptr<store_client::client> store;  // one of these two
  std::unique_ptr<store_client::router> cluster;
  std::atomic<int> registered{0}, watches{0};
  slot_table<pending_request> operations;

  // By the buffer's own word or by the driver's. EINVAL if it is not the memory that the buffer claims.
  result<store_client::memory> classify(const peerlane_buffer& buffer) const;
  bool test(const pending_request& one) const { return one.op ? store->test(one.op) : cluster->test(one.routed); }
  bool wait(const pending_request& one, store_client::clock::time_point deadline) const {
    return one.op ? store->wait(one.op, deadline) : cluster->wait(one.routed, deadline);
  }
};
using open_stores = live_handles<open_store>;

peerlane_op_info info_from(const store_client::reply& got) noexcept;

// Stores what has begun and writes its operation. Returns false if 4 million are in progress.
bool keep_request(peerlane_store_t store, open_store& opened, pending_request&& begun, peerlane_op_t* op);

}  // namespace pl
