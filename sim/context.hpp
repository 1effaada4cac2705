// SPDX-License-Identifier: Apache-2.0
// Contexts, the calling thread's context stack, and the entry check that nearly every driver call starts with.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "sim/handle_table.hpp"
#include "sim/stream.hpp"

namespace pl::sim {

// A hardware queue has one order for each of these: a copy does not stand behind another stream's kernel.
enum class engine { compute, copy };

struct context {
  context_t handle = nullptr;
  unsigned long long id = 0;  // never given out twice, although a primary context keeps its handle over a reset
  device* gpu = nullptr;
  std::atomic<unsigned> flags{0};
  bool is_primary = false;
  std::shared_ptr<context_state> fate = std::make_shared<context_state>();
  std::shared_ptr<stream> legacy;  // the NULL stream

  // Held by a call that puts work into a stream, also while it waits for room there: the other streams' calls then wait
  // as well, as in the real driver. Before `mutex`.
  std::mutex submitting;
  std::mutex mutex;                            // guards what follows, and makes a submission and its dependencies one step
  std::vector<std::weak_ptr<stream>> streams;  // all but legacy; destroyed ones stay until their work is done
  std::map<int, std::size_t> limits;
  unsigned next_queue = 0;                                         // hardware queue of the next stream
  std::map<std::pair<unsigned, engine>, stream::dependency> ends;  // last work in each shared hardware queue

  std::atomic<unsigned> peers{0};  // bit per device ordinal whose memory this context's kernels may touch

  // Waits for all work submitted so far. The sticky error, if there is one.
  result_t synchronize();
};
using context_ref = std::shared_ptr<context>;

std::shared_ptr<context> find_context(context_t handle);

// Result of the entry check. If `rc` is not success, the call returns it.
struct entry {
  result_t rc = code::success;
  context_ref ctx;
  explicit operator bool() const { return rc == code::success; }
};
// Initialised, not in a host function, a live current context, no sticky error.
entry enter();
// The same for one handle (null: the current context): streams and events know their context.
entry enter(context_t handle);
// The CUDA runtime has asked for its private tables: threads without a current context get device 0's primary one.
void note_runtime();
// Whether this thread has a current context, be it a live one or not.
bool has_current_context();

using stream_table = handle_table<stream, stream_t, 2>;
stream_table& streams();

// A stream argument: null, 1 and 2 are the current context's legacy stream (per-thread streams are not told apart).
struct stream_entry {
  result_t rc = code::success;
  context_ref ctx;
  std::shared_ptr<stream> target_stream;
  explicit operator bool() const { return rc == code::success; }
};
stream_entry enter_stream(stream_t handle);

// What every asynchronous call ends with: the work becomes a node if the stream is in capture, else it is queued and
// `queued` (if wanted) is its ticket. `type` is a graph_node_type. Refused when a capture forbids it.
result_t enqueue(const stream_entry& s, int type, stream::action work, bool always = false,
                 stream::ticket* queued = nullptr);
// Queues work with the legacy stream's ordering rules, whatever is being captured. Blocks while the stream's queue is
// full. Where streams share a hardware queue, the work also waits for what was put into that queue before.
stream::ticket submit(const context_ref& ctx, const std::shared_ptr<stream>& target_stream, stream::action work,
                      bool always = false, engine runs_on = engine::compute);
// Gives a new stream its hardware queue. Under ctx.mutex, or before the context is known to others.
void assign_queue(context& ctx, stream& made);
// Runs work in the order of the legacy stream and returns when it is done; on the calling thread when nothing is
// outstanding. The sticky error, if there is one afterwards.
result_t run_synchronously(const context_ref& ctx, const stream::action& work);

// Hook for the parts that own per-context things (allocations, events, modules): called when a context ends.
void release_context_memory(context_t handle);   // memory.cpp
void release_context_events(context_t handle);   // event.cpp
void release_context_modules(context_t handle);  // module.cpp

}  // namespace pl::sim
