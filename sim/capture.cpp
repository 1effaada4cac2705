// SPDX-License-Identifier: Apache-2.0
#include "sim/capture.hpp"

#include <algorithm>
#include <set>

#include "sim/event.hpp"

namespace pl::sim {
namespace {

struct all_captures {
  std::vector<capture_ref> live;  // under graph_mutex()
  std::atomic<unsigned> count{0};
  std::uint64_t last_id = 0;
};

all_captures& captures() {
  static auto* const instance = new all_captures;
  return *instance;
}

thread_local int t_mode = capture_mode::global;

// What a capture that is no longer good answers.
result_t state_of(const capture& c) { return c.is_capture_invalidated ? code::stream_capture_invalidated : code::success; }

result_t invalidate_capture(capture& c, result_t reason) {
  if (c.is_capture_invalidated) return code::stream_capture_invalidated;
  c.is_capture_invalidated = true;
  return reason;
}

// A capture in a blocking stream of the context, which the legacy stream would have to wait for.
capture_ref find_implicit_locked(const context& ctx) {
  for (const auto& c : captures().live)
    for (const auto& weak : c->joined)
      if (const auto target_stream = weak.lock();
          target_stream != nullptr && target_stream->owner() == ctx.handle && target_stream->is_blocking())
        return c;
  return nullptr;
}

// The one whose mode forbids this thread a call that might synchronise.
capture_ref find_forbidding_locked() {
  if (t_mode == capture_mode::relaxed) return nullptr;
  const auto self = std::this_thread::get_id();
  for (const auto& c : captures().live) {
    if (c->thread == self && c->mode != capture_mode::relaxed) return c;
    if (c->thread != self && c->mode == capture_mode::global && t_mode == capture_mode::global) return c;
  }
  return nullptr;
}

void join_locked(const capture_ref& c, const std::shared_ptr<stream>& target_stream, std::vector<graph_node_t> tails) {
  target_stream->in_capture = c;
  target_stream->tails = std::move(tails);
  c->joined.push_back(target_stream);
}

void merge_tails(std::vector<graph_node_t>& merged, const std::vector<graph_node_t>& more) {
  for (const graph_node_t node : more)
    if (std::find(merged.begin(), merged.end(), node) == merged.end()) merged.push_back(node);
}

std::set<graph_node_t> ancestors(const std::vector<graph_node_t>& nodes) {
  std::set<graph_node_t> seen(nodes.begin(), nodes.end());
  auto todo = nodes;
  while (!todo.empty()) {
    const auto node = find_node(todo.back());
    todo.pop_back();
    if (node == nullptr) continue;
    for (const graph_node_t before : node->after)
      if (seen.insert(before).second) todo.push_back(before);
  }
  return seen;
}

bool is_joined_up(const capture& c, const stream& origin) {
  const auto covered = ancestors(origin.tails);
  for (const auto& weak : c.joined)
    if (const auto target_stream = weak.lock())
      for (const graph_node_t tail : target_stream->tails)
        if (covered.count(tail) == 0) return false;
  return true;
}

void end_locked(const capture_ref& c) {
  for (const auto& weak : c->joined)
    if (const auto target_stream = weak.lock()) {
      target_stream->in_capture = nullptr;
      target_stream->tails.clear();
      target_stream->shown_tails.clear();
    }
  c->has_ended = true;
  auto& all = captures();
  std::erase(all.live, c);
  all.count = static_cast<unsigned>(all.live.size());
}

bool is_legacy(const stream_entry& s) { return s.target_stream == s.ctx->legacy; }

}  // namespace

bool is_anything_captured() { return captures().count.load(std::memory_order_relaxed) != 0; }

bool is_being_captured(graph_t handle) {
  if (!is_anything_captured()) return false;
  const std::lock_guard lock(graph_mutex());
  for (const auto& c : captures().live)
    if (c->made->handle == handle) return true;
  return false;
}

void leave_capture(stream& ended) {
  if (!is_anything_captured()) return;
  graph_t made = nullptr;
  {
    const std::lock_guard lock(graph_mutex());
    const capture_ref c = ended.in_capture;
    if (c == nullptr) return;
    c->is_capture_invalidated = true;
    if (c->origin.lock().get() != &ended) return;
    made = c->made->handle;
    end_locked(c);
  }
  end_graph(made);
}

result_t refuse_while_capturing(const stream_entry& s) {
  if (!is_anything_captured()) return code::success;
  const std::lock_guard lock(graph_mutex());
  if (is_legacy(s)) {
    const auto c = find_implicit_locked(*s.ctx);
    return c != nullptr ? invalidate_capture(*c, code::stream_capture_implicit) : code::success;
  }
  const auto& c = s.target_stream->in_capture;
  return c != nullptr ? invalidate_capture(*c, code::stream_capture_unsupported) : code::success;
}

result_t refuse_while_capturing(context& ctx) {
  if (!is_anything_captured()) return code::success;
  const std::lock_guard lock(graph_mutex());
  result_t rc = code::success;
  for (const auto& c : captures().live)
    for (const auto& weak : c->joined)
      if (const auto target_stream = weak.lock(); target_stream != nullptr && target_stream->owner() == ctx.handle)
        c->is_capture_invalidated = true, rc = code::stream_capture_unsupported;
  return rc;
}

result_t refuse_unsafe() {
  if (!is_anything_captured()) return code::success;
  const std::lock_guard lock(graph_mutex());
  const auto c = find_forbidding_locked();
  if (c == nullptr) return code::success;
  c->is_capture_invalidated = true;
  return code::stream_capture_unsupported;
}

entry enter_unsafe() {
  auto e = enter();
  if (e) e.rc = refuse_unsafe();
  return e;
}

result_t enter_unsafe_anywhere() {
  if (has_current_context()) return enter_unsafe().rc;
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  return refuse_unsafe();
}

namespace {

bool capture_node(const stream_entry& s, int type, const stream::action& work, const std::shared_ptr<event>& external,
                  result_t& rc) {
  const std::lock_guard lock(graph_mutex());
  const capture_ref c = s.target_stream->in_capture;
  if (c == nullptr) return false;
  rc = state_of(*c);
  if (rc != code::success) return true;
  const auto made =
      add_node_locked(*c->made, {nullptr, nullptr, type, s.ctx, work, external, s.target_stream->tails, {}, {}});
  s.target_stream->tails = {made->handle};
  return true;
}

}  // namespace

bool capture_operation(const stream_entry& s, int type, const stream::action& work, result_t& rc) {
  return is_anything_captured() && capture_node(s, type, work, nullptr, rc);
}

bool capture_record(const stream_entry& s, event& recorded, unsigned flags, result_t& rc) {
  {
    const std::lock_guard lock(graph_mutex());
    const capture_ref c = s.target_stream->in_capture;
    if (c == nullptr) {
      recorded.in_capture = nullptr;  // an ordinary record from now on
      return false;
    }
    rc = state_of(*c);
    if (rc != code::success) return true;
    if (flags != event_record_flag::external) {
      recorded.in_capture = c;
      recorded.tails = s.target_stream->tails;
      return true;
    }
  }
  return capture_node(s, graph_node_type::event_record, {}, recorded.shared_from_this(), rc);
}

bool capture_wait(const stream_entry& s, event& awaited, unsigned flags, result_t& rc) {
  {
    const std::lock_guard lock(graph_mutex());
    const capture_ref waiting = s.target_stream->in_capture;
    const capture_ref recording = awaited.in_capture;
    if (waiting == nullptr && recording == nullptr) return false;
    rc = waiting != nullptr ? state_of(*waiting) : state_of(*recording);
    if (rc != code::success) return true;
    if (waiting == nullptr) {
      if (is_legacy(s)) return rc = invalidate_capture(*recording, code::stream_capture_unsupported), true;
      if (recording->has_ended) return rc = code::captured_event, true;
      join_locked(recording, s.target_stream, awaited.tails);
      return true;
    }
    if (flags != event_wait_flag::external) {
      if (recording == waiting) return merge_tails(s.target_stream->tails, awaited.tails), true;
      if (recording != nullptr && !recording->has_ended) {
        invalidate_capture(*recording, code::stream_capture_merge);
        return rc = invalidate_capture(*waiting, code::stream_capture_merge), true;
      }
      if (awaited.current() != nullptr) rc = invalidate_capture(*waiting, code::stream_capture_isolation);
      return true;
    }
  }
  return capture_node(s, graph_node_type::event_wait, {}, awaited.shared_from_this(), rc);
}

result_t refuse_captured(event& asked) {
  const std::lock_guard lock(graph_mutex());
  if (asked.in_capture == nullptr) return code::success;
  if (!asked.in_capture->has_ended) asked.in_capture->is_capture_invalidated = true;
  return code::captured_event;
}

// ---- driver calls ---------------------------------------------------------------------------------------------------

PL_SIM_API cuStreamBeginCapture_v2(stream_t handle, int mode) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (mode < capture_mode::global || mode > capture_mode::relaxed) return code::invalid_value;
  if (is_legacy(s)) return code::stream_capture_unsupported;
  const std::lock_guard lock(graph_mutex());
  if (s.target_stream->in_capture != nullptr) return code::illegal_state;
  auto& all = captures();
  auto made = std::make_shared<capture>();
  made->id = ++all.last_id;
  made->mode = mode;
  made->thread = std::this_thread::get_id();
  made->made = make_graph();
  made->origin = s.target_stream;
  join_locked(made, s.target_stream, {});
  all.live.push_back(std::move(made));
  all.count = static_cast<unsigned>(all.live.size());
  return code::success;
}

// The oldest form knows one mode.
PL_SIM_API cuStreamBeginCapture(stream_t handle) { return cuStreamBeginCapture_v2(handle, capture_mode::global); }

PL_SIM_API cuStreamEndCapture(stream_t handle, graph_t* out) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (out == nullptr) return code::invalid_value;
  capture_ref ended;
  result_t rc = code::success;
  {
    const std::lock_guard lock(graph_mutex());
    ended = s.target_stream->in_capture;
    if (ended == nullptr) return code::illegal_state;
    if (ended->origin.lock() != s.target_stream) return invalidate_capture(*ended, code::stream_capture_unmatched);
    if (ended->mode != capture_mode::relaxed && ended->thread != std::this_thread::get_id())
      return invalidate_capture(*ended, code::stream_capture_wrong_thread);
    rc = state_of(*ended);
    if (rc == code::success && !is_joined_up(*ended, *s.target_stream)) rc = code::stream_capture_unjoined;
    end_locked(ended);
  }
  *out = rc == code::success ? ended->made->handle : nullptr;
  if (rc != code::success) end_graph(ended->made->handle);
  return rc;
}

namespace {

struct capture_info {
  int status = capture_status::none;
  std::uint64_t id = 0;
  graph_t graph = nullptr;
  const graph_node_t* nodes = nullptr;
  std::size_t count = 0;
};

// The legacy stream has no answer while a blocking stream is in capture, but asking does no harm.
result_t read_capture_info(stream_t handle, capture_info& out) {
  const auto s = enter_stream(handle);
  if (!s || !is_anything_captured()) return s.rc;
  const std::lock_guard lock(graph_mutex());
  if (is_legacy(s)) return find_implicit_locked(*s.ctx) != nullptr ? code::stream_capture_implicit : code::success;
  const auto& c = s.target_stream->in_capture;
  if (c == nullptr) return code::success;
  out.status = c->is_capture_invalidated ? capture_status::invalidated : capture_status::active;
  s.target_stream->shown_tails = s.target_stream->tails;
  if (!c->is_capture_invalidated)
    out = {out.status, c->id, c->made->handle, s.target_stream->shown_tails.data(), s.target_stream->shown_tails.size()};
  return code::success;
}

template <class T>
void give(T* out, const T& value) {
  if (out != nullptr) *out = value;
}

}  // namespace

PL_SIM_API cuStreamIsCapturing(stream_t handle, int* status) {
  capture_info info;
  const result_t rc = read_capture_info(handle, info);
  if (rc != code::success) return rc;
  if (status == nullptr) return code::invalid_value;
  *status = info.status;
  return code::success;
}

PL_SIM_API cuStreamGetCaptureInfo_v3(stream_t handle, int* status, std::uint64_t* id, graph_t* made,
                                     const graph_node_t** after, const void** edges, std::size_t* count) {
  if (status == nullptr || (edges != nullptr && after == nullptr)) return code::invalid_value;
  capture_info info;
  const result_t rc = read_capture_info(handle, info);
  if (rc != code::success) return rc;
  *status = info.status;
  give(id, info.id);
  give(made, info.graph);
  give(after, info.nodes);
  if (edges != nullptr) *edges = nullptr;  // no edge here carries data
  give(count, info.count);
  return code::success;
}
PL_SIM_API cuStreamGetCaptureInfo_v2(stream_t handle, int* status, std::uint64_t* id, graph_t* made,
                                     const graph_node_t** after, std::size_t* count) {
  return cuStreamGetCaptureInfo_v3(handle, status, id, made, after, nullptr, count);
}
PL_SIM_API cuStreamGetCaptureInfo(stream_t handle, int* status, std::uint64_t* id) {
  return cuStreamGetCaptureInfo_v3(handle, status, id, nullptr, nullptr, nullptr, nullptr);
}

PL_SIM_API cuStreamUpdateCaptureDependencies_v2(stream_t handle, graph_node_t* after, const void* edges, std::size_t count,
                                                unsigned flags) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  if (edges != nullptr) return code::not_supported;
  if (flags > capture_dependencies::set || (count != 0 && after == nullptr)) return code::invalid_value;
  const std::lock_guard lock(graph_mutex());
  const auto& c = s.target_stream->in_capture;
  if (c == nullptr) return code::illegal_state;
  if (c->is_capture_invalidated) return code::stream_capture_invalidated;
  const std::vector<graph_node_t> wanted(after, after + count);
  for (const graph_node_t node : wanted)
    if (const auto found = find_node(node); found == nullptr || found->graph != c->made->handle) return code::invalid_value;
  if (flags == capture_dependencies::set) s.target_stream->tails.clear();
  merge_tails(s.target_stream->tails, wanted);
  return code::success;
}
PL_SIM_API cuStreamUpdateCaptureDependencies(stream_t handle, graph_node_t* after, std::size_t count, unsigned flags) {
  return cuStreamUpdateCaptureDependencies_v2(handle, after, nullptr, count, flags);
}

PL_SIM_API cuThreadExchangeStreamCaptureMode(int* mode) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (mode == nullptr || *mode < capture_mode::global || *mode > capture_mode::relaxed) return code::invalid_value;
  std::swap(t_mode, *mode);
  return code::success;
}

}  // namespace pl::sim
