// SPDX-License-Identifier: Apache-2.0
// The store's requests in progress as operations (peerlane/operation.h).
#include "capi/errno_guard.hpp"
#include "capi/open_store.hpp"
#include "store/client/interruption.hpp"

namespace pl {
namespace {

constexpr const char* kNoRequest = "the operation is not live: it has ended already, or its store is closed";

// Calls `act(open_store&, pending_request&)` if the operation is live.
template <class Act>
int with_request(const peerlane_op_t* op, Act&& act) try {
  const errno_guard guard;
  const auto opened = open_stores::instance().find(op->owner);
  if (!opened) return fail(open_stores::instance().missing());
  pending_request* const found = opened->operations.find(op->number);
  return found != nullptr ? act(*opened, *found) : fail(EINVAL, kNoRequest);
}
PL_NO_EXCEPTIONS

int end(open_store& opened, peerlane_op_t& op, peerlane_op_info* out) {
  const pending_request ended = opened.operations.take(op.number);
  op.number = 0;
  const auto& got = ended.got();
  const auto info = info_from(got);
  write_info(info, out);
  if (ended.function != nullptr) ended.function->call(info);
  return got.status == 0 ? 0 : fail(got.status, got.text.c_str());
}

int test_request(peerlane_op_t* op, int* done, peerlane_op_info* info) {
  return with_request(op, [&](open_store& opened, pending_request& one) {
    const bool has_ended = opened.test(one) && !is_in_function(one.function);
    *done = has_ended ? 1 : 0;
    return has_ended ? end(opened, *op, info) : 0;
  });
}

int wait_request(peerlane_op_t* op, std::int64_t timeout_ms, peerlane_op_info* info) {
  using store_client::clock;
  constexpr std::int64_t kLongest = std::int64_t{1} << 40;  // fits into nanoseconds
  const store_client::no_interruption whole;
  return with_request(op, [&](open_store& opened, pending_request& one) {
    const auto deadline = timeout_ms < 0 || timeout_ms > kLongest ? clock::time_point::max()
                                                                  : clock::now() + std::chrono::milliseconds(timeout_ms);
    if (opened.wait(one, deadline)) return end(opened, *op, info);
    return fail(ETIMEDOUT, "the operation has not ended yet; it continues");
  });
}

int cancel_request(const peerlane_op_t* op) {
  return with_request(op, [](open_store& opened, pending_request& one) {
    if (opened.test(one)) return 0;
    return fail(EBUSY, "a request of the store cannot be cancelled: its timeout ends it");
  });
}

int then_request(const peerlane_op_t* op, peerlane_op_function_t function, void* context) {
  return with_request(op, [&](open_store& opened, pending_request& one) {
    if (one.function != nullptr) return fail(EEXIST, "the operation has a function already: one can be called at its end");
    auto made = std::make_shared<end_function>(function, context, op->owner);
    one.function = made;
    if (!one.op) {
      opened.cluster->call_at_end(one.routed, [made](const store_client::reply& got) { made->call(info_from(got)); });
      return 0;
    }
    const auto taken =
        opened.store->call_at_end(one.op, [made](store_client::operation& ended) { made->call(info_from(ended.got)); });
    if (taken) return 0;  // the operation may have ended meanwhile
    one.function = nullptr;
    return fail(taken.error());
  });
}

int release_request(peerlane_op_t* op) {
  const int code = wait_request(op, PEERLANE_NO_LIMIT, nullptr);
  return op->number == 0 ? 0 : code;
}

// One after the other: each request has its own timeout, and a waiting one drives the connection for all.
int wait_all_requests(peerlane_op_t* ops, std::size_t count, std::int64_t timeout_ms, peerlane_op_info* infos);

const peerlane_op_calls kRequestCalls{
    sizeof(peerlane_op_calls), test_request,      wait_request,      cancel_request,           then_request,
    release_request,           wait_all_requests, wait_any_in_turns, peerlane_store_last_error};

int wait_all_requests(peerlane_op_t* ops, std::size_t count, std::int64_t timeout_ms, peerlane_op_info* infos) try {
  const auto* const live = std::find_if(ops, ops + count, [](const peerlane_op_t& op) { return op.number != 0; });
  if (live == ops + count || !have_one_owner(ops, count, &kRequestCalls, live->owner))
    return wait_all_in_turns(ops, count, timeout_ms, infos);
  const time_limit limit(timeout_ms);
  int first = 0;
  std::string sentence;
  for (std::size_t i = 0; i < count; ++i) {
    const int code = peerlane_op_wait(ops + i, limit.left().count(), infos != nullptr ? infos + i : nullptr);
    if (ops[i].number != 0) return code;  // not by then, or not live
    if (code == 0 || first != 0) continue;
    first = code;
    sentence = last_error();
  }
  return first == 0 ? 0 : fail(first, sentence.c_str());
}
PL_NO_EXCEPTIONS

}  // namespace

void open_store::shut_down() {
  if (store) store->shut_down();
  if (cluster) cluster->shut_down();
}

open_store::~open_store() {
  // Requests in progress end with ECANCELED, and their functions are called with it.
  store.reset();
  cluster.reset();
}

peerlane_op_info info_from(const store_client::reply& got) noexcept {
  peerlane_op_info out;
  peerlane_op_info_clear(&out);
  out.error = got.status;
  out.path = static_cast<std::uint32_t>(got.result.way);
  out.durability = static_cast<std::uint32_t>(got.result.reached);
  out.crc32c = got.result.crc;
  out.user_flags = got.result.user_flags;
  out.repeated = got.result.repeated ? 1 : 0;
  out.version = got.result.version;
  out.size_bytes = got.result.value_bytes;
  out.moved_bytes = got.moved_bytes;
  out.server_ns = got.result.server_ns;
  return out;
}

bool keep_request(peerlane_store_t store, open_store& opened, pending_request&& begun, peerlane_op_t* op) {
  const auto number = opened.operations.add(std::move(begun));
  if (number != 0) *op = {&kRequestCalls, store, number};
  return number != 0;
}

}  // namespace pl
