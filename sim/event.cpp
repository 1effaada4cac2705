// SPDX-License-Identifier: Apache-2.0
#include "sim/event.hpp"

#include "base/clock.hpp"
#include "sim/capture.hpp"
#include "sim/context.hpp"

namespace pl::sim {
namespace {

handle_table<event, event_t, 3>& events() {
  static auto* const instance = new handle_table<event, event_t, 3>;
  return *instance;
}

constexpr unsigned kEventFlags = event_flag::blocking_sync | event_flag::disable_timing | event_flag::interprocess;

struct event_entry {
  result_t rc;
  std::shared_ptr<event> found;
  context_ref ctx;
};

event_entry enter_event(event_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return {rc, nullptr, nullptr};
  auto found = events().find(handle);
  if (found == nullptr) return {code::invalid_handle, nullptr, nullptr};
  auto e = enter(found->owner);
  return {e.rc, std::move(found), std::move(e.ctx)};
}

}  // namespace

std::shared_ptr<event> find_event(event_t handle) { return events().find(handle); }

void release_context_events(context_t handle) {
  events().remove_if([&](const event& e) { return e.owner == handle; });
}

PL_SIM_API cuEventCreate(event_t* out, unsigned flags) {
  const auto e = enter();
  if (!e) return e.rc;
  if (out == nullptr || (flags & ~kEventFlags) != 0) return code::invalid_value;
  if ((flags & event_flag::interprocess) != 0) {
    if ((flags & event_flag::disable_timing) == 0) return code::invalid_value;
    log_unsupported_once("cuEventCreate with CU_EVENT_INTERPROCESS", "is not part of the simulated GPU");
    return code::not_supported;
  }
  auto made = std::make_shared<event>();
  made->owner = e.ctx->handle;
  made->flags = flags;
  *out = events().insert(std::move(made));
  return code::success;
}

// No event here is an interprocess one.
PL_SIM_API cuIpcGetEventHandle(void*, event_t) {
  const auto rc = check_initialized();
  return rc != code::success ? rc : static_cast<result_t>(code::invalid_handle);
}

PL_SIM_API cuEventDestroy_v2(event_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  return events().remove(handle) != nullptr ? code::success : code::invalid_handle;
}

PL_SIM_API cuEventRecordWithFlags(event_t handle, stream_t stream_handle, unsigned flags) {
  const auto e = enter_event(handle);
  if (e.rc != code::success) return e.rc;
  const auto s = enter_stream(stream_handle);
  if (!s) return s.rc;
  if (flags > event_record_flag::external) return code::invalid_value;
  if (s.ctx->handle != e.found->owner) return code::invalid_handle;
  result_t rc = code::success;
  if (capture_record(s, *e.found, flags, rc)) return rc;
  if (flags == event_record_flag::external) return code::invalid_value;  // a graph's nodes only
  const auto next = e.found->make_latest();
  return enqueue(
      s, graph_node_type::event_record,
      [next] {
        order_stores();
        next->pass(monotonic_ns());
      },
      true);
}

PL_SIM_API cuEventRecord(event_t handle, stream_t stream_handle) {
  return cuEventRecordWithFlags(handle, stream_handle, event_record_flag::standard);
}

// Asking an event may make the driver synchronise, so captures can forbid it; one in capture has no time at all.
PL_SIM_API cuEventSynchronize(event_t handle) {
  const auto e = enter_event(handle);
  if (e.rc != code::success) return e.rc;
  if (const auto rc = refuse_captured(*e.found); rc != code::success) return rc;
  if (const auto unsafe = refuse_unsafe(); unsafe != code::success) return unsafe;
  if (const auto awaited = e.found->current()) awaited->wait();
  return e.ctx->fate->error.load();
}

PL_SIM_API cuEventQuery(event_t handle) {
  const auto e = enter_event(handle);
  if (e.rc != code::success) return e.rc;
  if (const auto rc = refuse_captured(*e.found); rc != code::success) return rc;
  if (const auto unsafe = refuse_unsafe(); unsafe != code::success) return unsafe;
  const auto asked = e.found->current();
  return asked == nullptr || asked->has_passed() ? code::success : code::not_ready;
}

PL_SIM_API cuEventElapsedTime(float* milliseconds, event_t start, event_t end) {
  const auto first = enter_event(start);
  if (first.rc != code::success) return first.rc;
  const auto second = enter_event(end);
  if (second.rc != code::success) return second.rc;
  if (milliseconds == nullptr) return code::invalid_value;
  const auto first_record = first.found->current();
  const auto last_record = second.found->current();
  const unsigned flags = first.found->flags | second.found->flags;
  if (first_record == nullptr || last_record == nullptr || (flags & event_flag::disable_timing) != 0)
    return code::invalid_handle;
  const std::uint64_t from_ns = first_record->passed_ns();
  const std::uint64_t to_ns = last_record->passed_ns();
  if (from_ns == 0 || to_ns == 0) return code::not_ready;
  *milliseconds = static_cast<float>(static_cast<double>(static_cast<std::int64_t>(to_ns - from_ns)) * 1e-6);
  return code::success;
}

}  // namespace pl::sim
