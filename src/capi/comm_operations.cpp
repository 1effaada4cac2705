// SPDX-License-Identifier: Apache-2.0
#include "capi/comm_operations.hpp"

#include <array>
#include <span>

#include "capi/collective_operations.hpp"

namespace pl {
namespace {

using std::chrono::milliseconds;

constexpr const char* kNoOperation = "the operation is not live: it has ended already, or is of another communicator";
// How often a wait checks watched operations.
constexpr milliseconds kWatchPause{1};

peerlane_comm_t owner_of(const peerlane_op_t& op) noexcept { return static_cast<peerlane_comm_t>(op.owner); }

// Precondition: the mutex is held.
void count_watched(open_comm& communicator) {
  communicator.has_watched =
      !communicator.watched_collectives.empty() || std::any_of(communicator.watched.begin(), communicator.watched.end(),
                                                               [](const watched_message& each) { return !each.has_ended; });
}

// Removes and returns the operation's function.
end_function_ptr stop_watching(open_comm& communicator, std::uint64_t number) {
  const std::lock_guard lock(communicator.watched_mutex);
  const auto found = std::find_if(communicator.watched.begin(), communicator.watched.end(),
                                  [&](const watched_message& each) { return each.number == number; });
  auto function = std::move(found->function);
  communicator.watched.erase(found);
  count_watched(communicator);
  return function;
}

bool is_in_function_of(open_comm& communicator, std::uint64_t number) {
  const std::lock_guard lock(communicator.watched_mutex);
  const auto found = std::find_if(communicator.watched.begin(), communicator.watched.end(),
                                  [&](const watched_message& each) { return each.number == number; });
  return is_in_function(found->function);
}

// Releases an operation that has ended: its number is dead. The outcome becomes the caller's result.
status take_ended(open_comm& communicator, const pending_message& one, peerlane_op_t& op, peerlane_op_info* info) {
  const auto function = one.has_function ? stop_watching(communicator, op.number) : nullptr;
  const pending_message ended = communicator.operations.take(op.number);
  op.number = 0;
  auto outcome = ended.request.outcome();
  if (info == nullptr && function == nullptr) return outcome;
  const auto ended_info = message_op_info(ended.request.info(), outcome.code(), ended.room_bytes);
  write_info(ended_info, info);
  if (function != nullptr) function->call(ended_info);
  return outcome;
}

int end(open_comm& communicator, const pending_message& one, peerlane_op_t& op, peerlane_op_info* info) {
  return return_code(take_ended(communicator, one, op, info));
}

// Waits for the first of these to end. Calls the functions of watched operations meanwhile.
result<std::size_t> wait_for(open_comm& communicator, std::span<const messaging::request* const> live,
                             std::int64_t timeout_ms) {
  const auto has_others = [&] {
    return communicator.has_watched.load(std::memory_order_relaxed) || communicator.collectives->has_pending();
  };
  if (!has_others()) return communicator.messenger->wait_any(live, milliseconds(timeout_ms));
  const time_limit limit(timeout_ms);
  for (;;) {
    call_end_functions(communicator);
    communicator.collectives->progress();
    const auto left = limit.left();
    const bool is_last = left.count() >= 0 && left <= kWatchPause;
    // A collective progresses between two checks of the messages, so these are short.
    const auto pause = communicator.collectives->has_pending() ? milliseconds(0) : kWatchPause;
    auto ended = communicator.messenger->wait_any(live, is_last ? std::min(left, pause) : pause);
    if (ended || ended.code() != ETIMEDOUT) return ended;
    if (is_last && limit.has_passed()) return failure{ETIMEDOUT, "not done within the time limit; it continues"};
  }
}

// Calls `act(open_comm&, pending_message&)` if the operation is live.
template <class Act>
int with_message(const peerlane_op_t* op, Act&& act) {
  return with_comm(owner_of(*op), [&](open_comm& communicator) {
    pending_message* const found = communicator.operations.find(op->number);
    return found != nullptr ? act(communicator, *found) : fail(EINVAL, kNoOperation);
  });
}

int test_message(peerlane_op_t* op, int* done, peerlane_op_info* info) {
  return with_message(op, [&](open_comm& communicator, pending_message& one) {
    *done = one.request.test() && !(one.has_function && is_in_function_of(communicator, op->number)) ? 1 : 0;
    const int code = *done != 0 ? end(communicator, one, *op, info) : 0;
    call_end_functions(communicator);
    return code;
  });
}

int wait_message(peerlane_op_t* op, std::int64_t timeout_ms, peerlane_op_info* info) {
  return with_message(op, [&](open_comm& communicator, pending_message& one) {
    const messaging::request* const request = &one.request;
    const auto ended = wait_for(communicator, {&request, 1}, timeout_ms);
    return ended ? end(communicator, one, *op, info) : fail(ended.error());
  });
}

int wait_any_message(peerlane_op_t* ops, std::size_t count, std::int64_t timeout_ms, std::size_t* index,
                     peerlane_op_info* info);
int wait_all_messages(peerlane_op_t* ops, std::size_t count, std::int64_t timeout_ms, peerlane_op_info* infos);

int cancel_message(const peerlane_op_t* op) {
  return with_message(op, [](open_comm& communicator, pending_message& one) {
    const int code = return_code(one.request.cancel());
    call_end_functions(communicator);
    return code;
  });
}

int then_message(const peerlane_op_t* op, peerlane_op_function_t function, void* context) {
  return with_message(op, [&](open_comm& communicator, pending_message& one) {
    if (one.has_function) return fail(EEXIST, "the operation has a function already: one can be called at its end");
    auto made = std::make_shared<end_function>(function, context, op->owner);
    {
      const std::lock_guard lock(communicator.watched_mutex);
      communicator.watched.push_back({op->number, false, std::move(made)});
      communicator.has_watched = true;
      one.has_function = true;
    }
    call_end_functions(communicator);
    return 0;
  });
}

// Ends an operation in any state. Its function gets ECANCELED unless the operation ended by itself.
void release(open_comm& communicator, std::uint64_t number) {
  if (!communicator.operations.find(number)->has_function) return static_cast<void>(communicator.operations.take(number));
  const auto function = stop_watching(communicator, number);
  pending_message ended = communicator.operations.take(number);
  const int code = ended.request.end_within(milliseconds(0)).code();
  const auto info = message_op_info(ended.request.info(), code == ETIMEDOUT ? ECANCELED : code, ended.room_bytes);
  ended.request = {};
  function->call(info);
}

int release_message(peerlane_op_t* op) {
  return with_message(op, [&](open_comm& communicator, pending_message&) {
    release(communicator, std::exchange(op->number, 0));
    return 0;
  });
}

const peerlane_op_calls kMessageCalls{
    sizeof(peerlane_op_calls), test_message,      wait_message,     cancel_message,     then_message,
    release_message,           wait_all_messages, wait_any_message, peerlane_last_error};

// The owner of all of them, if one communicator owns them all.
const peerlane_op_t* first_live(const peerlane_op_t* ops, std::size_t count) noexcept {
  return std::find_if(ops, ops + count, [](const peerlane_op_t& op) { return op.number != 0; });
}

int wait_any_message(peerlane_op_t* ops, std::size_t count, std::int64_t timeout_ms, std::size_t* index,
                     peerlane_op_info* info) {
  constexpr std::size_t kFew = 64;
  const auto* const first = first_live(ops, count);
  if (first == ops + count) return *index = count, peerlane_op_info_clear(info), 0;
  if (!have_one_owner(ops, count, &kMessageCalls, first->owner))
    return wait_any_in_turns(ops, count, timeout_ms, index, info);
  return with_comm(owner_of(*first), [&](open_comm& communicator) {
    std::array<const messaging::request*, kFew> few;
    std::vector<const messaging::request*> many(count > kFew ? count : 0);
    const std::span<const messaging::request*> live(count > kFew ? many.data() : few.data(), count);
    for (std::size_t i = 0; i < count; ++i) {
      const pending_message* const one = ops[i].number != 0 ? communicator.operations.find(ops[i].number) : nullptr;
      if (ops[i].number != 0 && one == nullptr) return fail(EINVAL, kNoOperation);
      live[i] = one != nullptr ? &one->request : nullptr;
    }
    const auto ended = wait_for(communicator, live, timeout_ms);
    if (!ended) return fail(ended.error());
    *index = *ended;
    return end(communicator, *communicator.operations.find(ops[*ended].number), ops[*ended], info);
  });
}

int wait_all_messages(peerlane_op_t* ops, std::size_t count, std::int64_t timeout_ms, peerlane_op_info* infos) {
  const auto* const first = first_live(ops, count);
  if (first == ops + count || !have_one_owner(ops, count, &kMessageCalls, first->owner))
    return wait_all_in_turns(ops, count, timeout_ms, infos);
  return with_comm(owner_of(*first), [&](open_comm& communicator) {
    const time_limit limit(timeout_ms);
    status worst;
    for (std::size_t i = 0; i < count; ++i) {
      auto* const info = infos != nullptr ? infos + i : nullptr;
      if (ops[i].number == 0) {
        peerlane_op_info_clear(info);
        continue;
      }
      const pending_message* const one = communicator.operations.find(ops[i].number);
      if (one == nullptr) return fail(EINVAL, kNoOperation);
      const messaging::request* const request = &one->request;
      if (auto ended = wait_for(communicator, {&request, 1}, limit.left().count()); !ended) return fail(ended.error());
      auto outcome = take_ended(communicator, *one, ops[i], info);
      if (!outcome && worst) worst = std::move(outcome);
    }
    return return_code(worst);
  });
}

}  // namespace

int keep(peerlane_comm_t comm, open_comm& communicator, messaging::request&& made, std::uint64_t room_bytes,
         peerlane_op_t* op) {
  if (made.is_refused()) return return_code(made.outcome());
  const auto number = communicator.operations.add({std::move(made), room_bytes, false});
  if (number == 0) return fail(EAGAIN, "4 million operations of this communicator have not been waited for: end some");
  *op = {&kMessageCalls, comm, number};
  return 0;
}

void call_ended(open_comm& communicator) {
  call_ended_collectives(communicator);
  std::vector<std::pair<end_function_ptr, peerlane_op_info>> ended;
  {
    const std::lock_guard lock(communicator.watched_mutex);
    for (auto& each : communicator.watched) {
      const pending_message& one = *communicator.operations.find(each.number);
      const messaging::request* const request = &one.request;
      if (each.has_ended || !communicator.messenger->wait_any({&request, 1}, milliseconds(0))) continue;
      each.has_ended = true;
      ended.emplace_back(each.function, message_op_info(request->info(), request->outcome().code(), one.room_bytes));
    }
    count_watched(communicator);
  }
  for (const auto& [function, info] : ended) function->call(info);
}

void end_all(open_comm& communicator) {
  while (!communicator.watched.empty()) release(communicator, communicator.watched.back().number);
  communicator.operations.clear();
}

}  // namespace pl
