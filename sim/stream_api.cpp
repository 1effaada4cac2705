// SPDX-License-Identifier: Apache-2.0
// Driver calls about streams themselves. Memory operations on streams are in memops.cpp.
#include "sim/capture.hpp"
#include "sim/event.hpp"

namespace pl::sim {
namespace {

// A stream takes memory of the GPU: on an H200 (driver 580) none can be made while 4 MiB are free, and one can while 40 MiB
// are.
constexpr std::size_t kStreamBytes = 8u << 20;

}  // namespace

PL_SIM_API cuStreamCreateWithPriority(stream_t* out, unsigned flags, int priority) {
  const auto e = enter();
  if (!e) return e.rc;
  if (out == nullptr || (flags & ~unsigned{stream_flag::non_blocking}) != 0) return code::invalid_value;
  if (e.ctx->gpu->memory_bytes - e.ctx->gpu->used_bytes.load() < kStreamBytes) return code::out_of_memory;
  const int clamped = priority < -5 ? -5 : priority > 0 ? 0 : priority;  // out of range is no error, as documented
  auto made = std::make_shared<stream>(e.ctx->handle, e.ctx->fate, e.ctx->gpu->ordinal, flags, clamped);
  {
    const std::lock_guard lock(e.ctx->mutex);
    assign_queue(*e.ctx, *made);
    e.ctx->streams.push_back(made);
  }
  *out = streams().insert(std::move(made));
  return code::success;
}

PL_SIM_API cuStreamCreate(stream_t* out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

// Returns at once; the worker finishes what is queued. A capture that the stream took part in is spoilt.
PL_SIM_API cuStreamDestroy_v2(stream_t handle) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto ended = streams().remove(handle);
  if (ended == nullptr) return code::invalid_handle;
  leave_capture(*ended);
  return code::success;
}

PL_SIM_API cuStreamSynchronize(stream_t handle) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (const auto rc = refuse_while_capturing(s); rc != code::success) return rc;
  // Waiting for the legacy stream means waiting for everything it is ordered behind.
  if (s.target_stream == s.ctx->legacy) return run_synchronously(s.ctx, [] {});
  s.target_stream->wait(s.target_stream->submitted());
  return s.ctx->fate->error.load();
}

PL_SIM_API cuStreamQuery(stream_t handle) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (const auto rc = refuse_while_capturing(s); rc != code::success) return rc;
  if (!s.target_stream->is_idle()) return code::not_ready;
  return s.ctx->fate->error.load();
}

PL_SIM_API cuStreamWaitEvent(stream_t handle, event_t awaited, unsigned flags) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (flags > event_wait_flag::external) return code::invalid_value;
  const auto found = find_event(awaited);
  if (found == nullptr) return code::invalid_handle;
  result_t rc = code::success;
  if (capture_wait(s, *found, flags, rc)) return rc;
  if (flags == event_wait_flag::external) return code::invalid_value;  // a graph's nodes only
  const auto finished = found->current();
  if (finished == nullptr || finished->has_passed()) return code::success;
  return enqueue(s, graph_node_type::event_wait, [finished, fate = s.ctx->fate] { finished->wait_unless(fate->stopped); });
}

PL_SIM_API cuStreamGetFlags(stream_t handle, unsigned* flags) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (flags == nullptr) return code::invalid_value;
  *flags = s.target_stream->flags();
  return code::success;
}

PL_SIM_API cuStreamGetPriority(stream_t handle, int* priority) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (priority == nullptr) return code::invalid_value;
  *priority = s.target_stream->priority();
  return code::success;
}

PL_SIM_API cuStreamGetCtx(stream_t handle, context_t* out) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (out == nullptr) return code::invalid_value;
  *out = s.ctx->handle;
  return code::success;
}

PL_SIM_API cuStreamGetDevice(stream_t handle, device_t* out) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (out == nullptr) return code::invalid_value;
  *out = s.ctx->gpu->ordinal;
  return code::success;
}

PL_SIM_API cuStreamGetId(stream_t handle, unsigned long long* id) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (id == nullptr) return code::invalid_value;
  // Streams are never reused, so their handles are ids; the legacy stream's is its context's.
  *id = s.target_stream == s.ctx->legacy ? reinterpret_cast<std::uintptr_t>(s.ctx->handle)
                                         : reinterpret_cast<std::uintptr_t>(handle);
  return code::success;
}

namespace {
using stream_callback = void (*)(stream_t, result_t, void*);
}  // namespace

PL_SIM_API cuLaunchHostFunc(stream_t handle, host_function_t function, void* data) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (function == nullptr) return code::invalid_value;
  return enqueue(s, graph_node_type::host, [function, data] {
    order_stores();
    const host_function_scope scope;
    function(data);
  });
}

// Unlike host functions, callbacks are also called when the context has failed, with the reason.
PL_SIM_API cuStreamAddCallback(stream_t handle, stream_callback callback, void* data, unsigned flags) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (callback == nullptr || flags != 0) return code::invalid_value;
  if (const auto rc = refuse_while_capturing(s); rc != code::success) return rc;  // graphs have no callbacks
  submit(
      s.ctx, s.target_stream,
      [callback, data, handle, fate = s.ctx->fate] {
        order_stores();
        const host_function_scope scope;
        callback(handle, fate->error.load(), data);
      },
      true);
  return code::success;
}

}  // namespace pl::sim
