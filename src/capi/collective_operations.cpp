// SPDX-License-Identifier: Apache-2.0
#include "capi/collective_operations.hpp"

#include <algorithm>

namespace pl {
namespace {

using std::chrono::milliseconds;

constexpr const char* kNoCollective = "the operation is not live: it has ended already, or is of another communicator";

peerlane_comm_t comm_of_collective(const peerlane_op_t& op) noexcept { return static_cast<peerlane_comm_t>(op.owner); }

peerlane_op_info info_of(std::uint64_t bytes, int error) noexcept {
  peerlane_op_info out;
  peerlane_op_info_clear(&out);
  out.error = error;
  out.size_bytes = bytes;
  if (error == 0) out.moved_bytes = bytes;
  return out;
}

// Calls `act(open_comm&, pending_collective&)` if the operation is live.
template <class Act>
int with_collective(const peerlane_op_t* op, Act&& act) {
  return with_comm(comm_of_collective(*op), [&](open_comm& communicator) {
    pending_collective* const found = communicator.collective_operations.find(op->number);
    return found != nullptr ? act(communicator, *found) : fail(EINVAL, kNoCollective);
  });
}

// Removes the operation, first from the watched ones, because other threads look up the numbers that they find there.
pending_collective take(open_comm& communicator, const pending_collective& one, std::uint64_t number) {
  if (one.function != nullptr) {
    const std::lock_guard lock(communicator.watched_mutex);
    std::erase(communicator.watched_collectives, number);
  }
  return communicator.collective_operations.take(number);
}

// The outcome becomes the caller's result.
int end(open_comm& communicator, const pending_collective& one, peerlane_op_t& op, peerlane_op_info* info) {
  const pending_collective ended = take(communicator, one, op.number);
  op.number = 0;
  const auto outcome = ended.operation.outcome();
  const auto ended_info = info_of(ended.bytes, outcome.code());
  write_info(ended_info, info);
  if (ended.function != nullptr) ended.function->call(ended_info);
  return return_code(outcome);
}

// Ends a collective that is still in progress.
void drop(open_comm& communicator, const pending_collective& one, std::uint64_t number) {
  pending_collective dropped = take(communicator, one, number);
  dropped.operation = {};
  if (dropped.function != nullptr) dropped.function->call(info_of(dropped.bytes, ECANCELED));
}

int test_collective(peerlane_op_t* op, int* done, peerlane_op_info* info) {
  return with_collective(op, [&](open_comm& communicator, pending_collective& one) {
    *done = one.operation.test() && !is_in_function(one.function) ? 1 : 0;
    const int code = *done != 0 ? end(communicator, one, *op, info) : 0;
    call_end_functions(communicator);
    return code;
  });
}

int wait_collective(peerlane_op_t* op, std::int64_t timeout_ms, peerlane_op_info* info) {
  return with_collective(op, [&](open_comm& communicator, pending_collective& one) {
    // How often a wait checks operations that have functions.
    constexpr milliseconds kWatchPause{1};
    const time_limit limit(timeout_ms);
    for (;;) {
      const bool is_watching = communicator.has_watched.load(std::memory_order_relaxed);
      const auto left = limit.left();
      const bool is_whole = !is_watching || (left.count() >= 0 && left <= kWatchPause);
      const auto outcome = one.operation.wait(is_whole ? left : kWatchPause);
      if (one.operation.has_ended()) break;
      if (is_whole) return fail(outcome.error());
      call_end_functions(communicator);
    }
    return end(communicator, one, *op, info);
  });
}

int cancel_collective(const peerlane_op_t* op) {
  return with_collective(op, [](open_comm&, pending_collective& one) {
    if (one.operation.has_ended()) return 0;
    return fail(EBUSY, "a collective is the other ranks', too: wait for it, or release it, which stops all collectives");
  });
}

int then_collective(const peerlane_op_t* op, peerlane_op_function_t function, void* context) {
  return with_collective(op, [&](open_comm& communicator, pending_collective& one) {
    if (one.function != nullptr) return fail(EEXIST, "the operation has a function already: one can be called at its end");
    {
      const std::lock_guard lock(communicator.watched_mutex);
      one.function = std::make_shared<end_function>(function, context, op->owner);
      communicator.watched_collectives.push_back(op->number);
      communicator.has_watched = true;
    }
    call_end_functions(communicator);
    return 0;
  });
}

int release_collective(peerlane_op_t* op) {
  return with_collective(op, [&](open_comm& communicator, pending_collective& one) {
    if (one.operation.has_ended()) return static_cast<void>(end(communicator, one, *op, nullptr)), 0;
    drop(communicator, one, std::exchange(op->number, 0));
    return 0;
  });
}

const peerlane_op_calls kCollectiveCalls{sizeof(peerlane_op_calls), test_collective,   wait_collective,
                                         cancel_collective,         then_collective,   release_collective,
                                         wait_all_in_turns,         wait_any_in_turns, peerlane_last_error};

}  // namespace

int keep_collective(peerlane_comm_t comm, open_comm& communicator, collectives::operation&& begun, std::uint64_t bytes,
                    peerlane_op_t* op) {
  const auto number = communicator.collective_operations.add({std::move(begun), bytes, nullptr});
  if (number == 0) return fail(EAGAIN, "4 million operations of this communicator have not been waited for: end some");
  *op = {&kCollectiveCalls, comm, number};
  return 0;
}

void call_ended_collectives(open_comm& communicator) {
  std::vector<std::pair<end_function_ptr, peerlane_op_info>> ended;
  {
    const std::lock_guard lock(communicator.watched_mutex);
    std::erase_if(communicator.watched_collectives, [&](std::uint64_t number) {
      const pending_collective& one = *communicator.collective_operations.find(number);
      if (!one.operation.has_ended()) return false;
      ended.emplace_back(one.function, info_of(one.bytes, one.operation.outcome().code()));
      return true;
    });
  }
  for (const auto& [function, info] : ended) function->call(info);
}

void end_collectives(open_comm& communicator) {
  call_ended_collectives(communicator);
  while (!communicator.watched_collectives.empty()) {
    const auto number = communicator.watched_collectives.back();
    drop(communicator, *communicator.collective_operations.find(number), number);
  }
  communicator.collective_operations.clear();
}

}  // namespace pl
