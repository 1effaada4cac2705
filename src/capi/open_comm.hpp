// SPDX-License-Identifier: Apache-2.0
// The object behind a C communicator: its messenger, and the objects that its numbers name.
#pragma once

#include <peerlane/communicator.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "capi/capi_call.hpp"
#include "capi/open_table.hpp"
#include "capi/operation_calls.hpp"
#include "capi/slot_table.hpp"
#include "collectives/executor.hpp"
#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/messenger.hpp"

namespace pl {

struct pending_message {
  messaging::request request;
  std::uint64_t room_bytes = UINT64_MAX;  // size of a receive's buffer
  bool has_function = false;              // of peerlane_op_then(): the operation is in open_comm::watched
};

// Separate from the operation's slot, so that a message without a function moves one word less.
struct watched_message {
  std::uint64_t number = 0;  // of the operation
  bool has_ended = false;    // and the function was called, or is being called
  end_function_ptr function;
};

struct pending_collective {
  collectives::operation operation;
  std::uint64_t bytes = 0;
  end_function_ptr function;  // of peerlane_op_then()
};

struct open_comm {
  ~open_comm();
  peerlane_copier_t copier = nullptr;             // borrowed
  std::unique_ptr<messaging::bootstrap> meeting;  // of an elastic job, as long as ranks may return
  std::unique_ptr<messaging::bootstrap> group;    // for exchanges
  std::unique_ptr<messaging::messenger> messenger;
  std::unique_ptr<collectives::executor> collectives;
  std::string cpus;  // CPUs of the thread that opened it
  // Destroyed before the messenger.
  slot_table<pending_message> operations;
  slot_table<pending_collective> collective_operations;
  slot_table<messaging::matched_message> matched;
  slot_table<messaging::window> windows;
  slot_table<messaging::messenger::registration> registrations;

  // The operations with a function. Whoever ends one of them removes it from here first.
  std::mutex watched_mutex;
  std::vector<watched_message> watched;
  std::vector<std::uint64_t> watched_collectives;  // those that have not ended
  std::atomic<bool> has_watched{false};            // one has not ended
};

// Calls the functions of what has ended. Called by every call on the communicator that makes progress; costs one load
// if no operation is watched.
void call_ended(open_comm& communicator);
inline void call_end_functions(open_comm& communicator) {
  if (communicator.has_watched.load(std::memory_order_relaxed)) [[unlikely]]
    call_ended(communicator);
}
// Ends what is in progress, as peerlane_op_release() does.
void end_all(open_comm& communicator);

}  // namespace pl

struct peerlane_comm : pl::open_slot<pl::open_comm> {};

namespace pl {

// Reads a caller's options, for everything that opens a messenger. EINVAL if struct_bytes is invalid.
result<peerlane_comm_options> read_comm_options(const peerlane_comm_options* options);
bool is_elastic(const peerlane_comm_options& given);
result<std::unique_ptr<messaging::bootstrap>> meet(const peerlane_comm_options& given);
messaging::messenger_options messenger_options_from(const peerlane_comm_options& given);

// Gathers `bytes` of every rank into `all`, for setup. Returns an errno value, with the thread's last error set.
int all_gather_equal(messaging::bootstrap& group, const void* mine, std::size_t bytes, void* all);

// The communicator, or null with `code` and the thread's last error set: EINVAL; EACCES in a forked child.
open_comm* comm_of(peerlane_comm_t handle, int& code) noexcept;

// Common entry for the calls of a communicator: with_open() of `act(open_comm&)`.
template <class Act>
int with_comm(peerlane_comm_t handle, Act&& act) {
  return with_open(handle, comm_of, act);
}

}  // namespace pl
