// SPDX-License-Identifier: Apache-2.0
// Copies in progress as operations (peerlane/operation.h). The contract is in peerlane/copy.h.
#include <peerlane/peerlane.h>

#include "capi/errno_guard.hpp"
#include "capi/open_copier.hpp"

namespace {

using pl::end_function;
using pl::fail;
using pl::kNullPointer;
using pl::pending_copy;
using pl::return_code;
using pl::status;

constexpr const char* kNoCopy = "the operation is not live: it has already ended, or does not belong to this copier";

// Calls `act(pending_copy&)` if the operation is live.
template <class Act>
int with_copy(const peerlane_op_t* op, Act&& act) try {
  const pl::errno_guard guard;
  int code = 0;
  auto* const copier = static_cast<peerlane_copier_t>(op->owner);
  if (pl::planner_of(copier, code) == nullptr) return code;
  pending_copy* const found = copier->operations->table.find(op->number);
  return found != nullptr ? act(*found) : fail(EINVAL, kNoCopy);
}
PL_NO_EXCEPTIONS

std::optional<status> poll(pending_copy& one, pl::watched_copy::function_wait allowed) {
  if (one.watched != nullptr) return one.watched->poll(allowed);
  const auto state = one.copies.test();
  if (state && !*state) return std::nullopt;
  return state ? status{} : status(state.error());
}

// Frees the operation's number; the outcome becomes the caller's result.
int end(peerlane_op_t& op, const status& outcome, peerlane_op_info* info) {
  auto* const copier = static_cast<peerlane_copier_t>(op.owner);
  const pending_copy ended = copier->operations->table.take(op.number);
  op.number = 0;
  copier->objects.fetch_sub(1, std::memory_order_release);
  pl::write_info(pl::copy_info(outcome.code(), ended.size_bytes), info);
  return return_code(outcome);
}

int test_copy(peerlane_op_t* op, int* done, peerlane_op_info* info) {
  return with_copy(op, [&](pending_copy& one) {
    const auto outcome = poll(one, pl::watched_copy::function_wait::none);
    *done = outcome ? 1 : 0;
    return outcome ? end(*op, *outcome, info) : 0;
  });
}

int wait_copy(peerlane_op_t* op, std::int64_t timeout_ms, peerlane_op_info* info) {
  return with_copy(op, [&](pending_copy& one) {
    if (timeout_ms < 0 && one.watched == nullptr) return end(*op, one.copies.wait(), info);
    const pl::time_limit limit(timeout_ms);
    for (pl::poll_pause idle;; idle.pause()) {
      if (const auto outcome = poll(one, pl::watched_copy::function_wait::for_function)) return end(*op, *outcome, info);
      if (limit.has_passed()) return fail(ETIMEDOUT, "the copies have not ended yet; they continue");
    }
  });
}

int cancel_copy(const peerlane_op_t* op) {
  return with_copy(op,
                   [](pending_copy&) { return fail(EBUSY, "copies in progress cannot be cancelled: wait for their end"); });
}

int then_copy(const peerlane_op_t* op, peerlane_op_function_t function, void* context) {
  return with_copy(op, [&](pending_copy& one) {
    if (one.watched != nullptr) return fail(EEXIST, "the operation has a function already: one can be called at its end");
    auto ended = std::make_shared<end_function>(function, context, op->owner);
    auto made = std::make_shared<pl::watched_copy>(std::move(one.copies), one.size_bytes, std::move(ended));
    try {
      static_cast<peerlane_copier_t>(op->owner)->operations->watcher.watch(made);
    } catch (...) {
      one.copies = made->take_back();
      throw;
    }
    one.watched = std::move(made);
    return 0;
  });
}

int release_copy(peerlane_op_t* op) {
  const int code = wait_copy(op, PEERLANE_NO_LIMIT, nullptr);
  return op->number == 0 ? 0 : code;
}

const peerlane_op_calls kCopyCalls{
    sizeof(peerlane_op_calls), test_copy,          wait_copy, cancel_copy, then_copy, release_copy, pl::wait_all_in_turns,
    pl::wait_any_in_turns,     peerlane_last_error};

template <class Act>
int order_after(const peerlane_op_t* op, Act&& act) {
  if (op == nullptr) return fail(EINVAL, kNullPointer);
  if (op->number == 0) return 0;
  if (op->calls != &kCopyCalls)
    return fail(EINVAL, "the operation is not a copy: pass one from peerlane_copy_begin or peerlane_blocks_begin");
  return with_copy(op, [&](pending_copy& one) {
    return return_code(one.watched != nullptr ? one.watched->with_copies(act) : act(one.copies));
  });
}

}  // namespace

int pl::add_operation(peerlane_copier_t copier, copy::completion copies, std::uint64_t size_bytes, peerlane_op_t& op) {
  const auto number = copier->operations->table.add({std::move(copies), size_bytes, nullptr});
  if (number == 0) return fail(EAGAIN, "4 million copies of this copier have not been ended: end some");
  copier->objects.fetch_add(1, std::memory_order_relaxed);
  op = {&kCopyCalls, copier, number};
  return 0;
}

PL_EXPORT int peerlane_copy_begin(peerlane_copier_t copier, const struct peerlane_transfer* given, size_t count,
                                  uint32_t flags, void* stream, peerlane_op_t* op) try {
  const pl::errno_guard guard;
  if (op == nullptr) return fail(EINVAL, kNullPointer);
  if ((flags & ~static_cast<uint32_t>(PEERLANE_BEGIN_AFTER_STREAM)) != 0)
    return fail(EINVAL, "unknown bits in flags: give PEERLANE_BEGIN_ values only");
  int code = 0;
  auto* const planner = pl::planner_of(copier, code);
  if (planner == nullptr) return code;
  std::vector<pl::copy::transfer> list;
  if ((code = pl::read_transfers(given, count, list)) != 0) return code;
  auto begun = planner->begin(list, {(flags & PEERLANE_BEGIN_AFTER_STREAM) != 0, static_cast<pl::cu::stream_t>(stream)});
  if (!begun) return fail(begun.error());
  std::uint64_t size_bytes = 0;
  for (const auto& transfer : list) size_bytes += transfer.bytes();
  return pl::add_operation(copier, *std::move(begun), size_bytes, *op);
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copy_capture(peerlane_copier_t copier, const struct peerlane_transfer* given, size_t count,
                                    void* stream) try {
  const pl::errno_guard guard;
  int code = 0;
  auto* const planner = pl::planner_of(copier, code);
  if (planner == nullptr) return code;
  std::vector<pl::copy::transfer> list;
  if ((code = pl::read_transfers(given, count, list)) != 0) return code;
  return return_code(planner->capture(list, static_cast<pl::cu::stream_t>(stream)));
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_copy_make_wait(const peerlane_op_t* op, void* stream) {
  return order_after(op,
                     [&](pl::copy::completion& copies) { return copies.make_wait(static_cast<pl::cu::stream_t>(stream)); });
}

PL_EXPORT int peerlane_copy_record(const peerlane_op_t* op, void* event) {
  return order_after(op, [&](pl::copy::completion& copies) { return copies.record(static_cast<pl::cu::event_t>(event)); });
}

PL_EXPORT int peerlane_copy_descriptor(const peerlane_op_t* op, int* descriptor) try {
  if (op == nullptr || descriptor == nullptr) return fail(EINVAL, kNullPointer);
  if (op->number == 0 || op->calls != &kCopyCalls)
    return fail(EINVAL, "the operation is not a copy in progress: give one of peerlane_copy_begin or peerlane_blocks_begin");
  return with_copy(op, [&](pending_copy& one) {
    if (one.watched != nullptr) return fail(EBUSY, "a function waits for the copies: it is called when they have ended");
    const auto made = one.copies.descriptor();
    if (!made) return fail(made.error());
    *descriptor = *made;
    return 0;
  });
}
PL_NO_EXCEPTIONS
