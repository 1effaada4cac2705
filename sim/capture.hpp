// SPDX-License-Identifier: Apache-2.0
// Stream capture: between begin and end, what is put into a stream becomes nodes of a graph instead of running, and calls
// that cannot be part of a graph are refused and spoil the capture, as the driver's rules say.
//
// Nothing here costs more than one relaxed load while no capture is under way in the process.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "sim/graph.hpp"

namespace pl::sim {

struct capture {
  std::uint64_t id = 0;
  int mode = 0;  // capture_mode
  std::thread::id thread;
  std::shared_ptr<graph> made;
  std::weak_ptr<stream> origin;
  std::vector<std::weak_ptr<stream>> joined;  // origin too
  bool is_capture_invalidated = false;
  bool has_ended = false;
};
using capture_ref = std::shared_ptr<capture>;

// True if no capture is under way in the process: the fast path.
bool is_anything_captured();
bool is_being_captured(graph_t handle);

// For calls that are illegal during capture (synchronise, query, callbacks): invalidates the capture. Of the legacy stream:
// refused while a blocking stream of its context is in capture.
result_t refuse_while_capturing(const stream_entry& s);
// The same for the whole context.
result_t refuse_while_capturing(context& ctx);
// For calls that might synchronise implicitly (allocation, copies that block, event queries): what the
// thread's and the captures' modes say. enter_unsafe() is enter() and this in one.
result_t refuse_unsafe();
entry enter_unsafe();
// The same for calls whose argument says where they act: they need no current context, as frees.
result_t enter_unsafe_anywhere();

// In capture: adds a node and returns true with the outcome in `rc`. False: the stream is not in capture, do the work.
bool capture_operation(const stream_entry& s, int type, const stream::action& work, result_t& rc);
// The stream is being destroyed: its capture is spoilt, and over if it began there.
void leave_capture(stream& ended);

// Events in capture stand for places in the graph. All return true if the call has been dealt with, with its outcome.
struct event;
bool capture_record(const stream_entry& s, event& recorded, unsigned flags, result_t& rc);
bool capture_wait(const stream_entry& s, event& awaited, unsigned flags, result_t& rc);
// captured_event, and the capture is spoilt, when the event was last recorded in one.
result_t refuse_captured(event& asked);

}  // namespace pl::sim
