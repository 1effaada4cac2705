// SPDX-License-Identifier: Apache-2.0
// A channel: puts, signals and waits between two GPUs, queued on CUDA streams.
//
// Each end numbers its puts and signals from 1, and its waits from 1. Wait n of one end completes when put or signal n of
// the other end has completed. The stream then continues without a CPU (executor P) or with the help of the proxy threads
// (executor X).
//
// Order: work of the stream before put(n) is visible to the work of the peer's stream after wait(n). The puts and signals
// of one end must come from one stream at a time, or from streams that events order. The caller manages the windows: a put
// into bytes that the peer still uses is a race, unless the peer releases what it has read and `depth` bounds the puts.
//
// Threads: one at a time per channel, any number of channels. Any thread may call cancel(), state(), sent() and arrived().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.hpp"
#include "triggered/executor.hpp"

namespace pl::triggered {

class context;
struct channel_core;
struct capture;

enum class wait_method : std::uint32_t { front_end = 0, kernel = 1 };

struct channel_options {
  executor_kind executor = executor_kind::automatic;
  // Limit of puts that the peer has not released: put(n) waits on the stream for release(n - depth). 0: puts never wait,
  // and the peer need not release.
  unsigned depth = 0;
  // Limit of queued waits that no stream has reached, and of queued puts that have not left. Beyond it, calls return
  // EAGAIN; a full launch queue of the driver would block the call and the calls for other streams.
  unsigned most_queued = 256;  // at most 1000
  // How a stream waits. A polling kernel sees the signal 3 us sooner and costs the CPU one more launch (3 us). In a graph
  // it costs none, and it makes an operation a single node (graph_slots.hpp). Polling kernels need a GPU that no other
  // process uses, because kernels of several processes share the GPU in turns. Where ranks of this job share a GPU, or the
  // build has no kernels, the front end waits whatever this field says; diag() reports it.
  wait_method wait = wait_method::front_end;
  // A captured wait releases its put directly after the wait. For signals, and for puts whose bytes nobody overwrites while
  // they are in use. Otherwise the graph must contain a release for each of its waits, or it works only once.
  bool releases_captured_waits = false;
  // A stream that stays in one wait for this long, or before a put that needs a release, is released, and the channel fails
  // with ETIMEDOUT. Negative: the value of the context; 0: no limit. Without a CPU mapping of GPU memory puts have no
  // time-out.
  std::chrono::nanoseconds wait_timeout{-1};
};

// `error` does not change once it is set: ETIMEDOUT, ECONNRESET (the peer is gone), ECANCELED, EPIPE (the peer's end
// failed, or it was closed while a stream waited for an operation that will not come), EIO. Waiting streams have then been
// released and continue with whatever data has arrived.
struct channel_state {
  executor_kind executor = executor_kind::automatic;
  int error = 0;
  std::string reason;
  std::uint64_t puts = 0;     // queued, signals included
  std::uint64_t sent = 0;     // left this GPU
  std::uint64_t waits = 0;    // queued
  std::uint64_t reached = 0;  // reached by a stream
  std::uint64_t passed = 0;   // passed by a stream; 0 where the CPU cannot read GPU memory
};

class channel {
 public:
  // Cancels the waits of both ends' streams (ECANCELED here, EPIPE at the peer). Completed puts stay valid: the peer's
  // waits for them succeed, whether they are queued before or after. Only waits for operations that will not come, and new
  // puts, fail with EPIPE. A graph with slots can still be launched without this process noticing, so the peer's end fails
  // if it holds one. Waits until nobody holds the channel (hold()).
  ~channel();
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;

  // Waits until the peer has created its end and waits in turn. Without this call, the first other call does it within the
  // context's time limit. Two ends of one process may be created one after the other before either is ready. ETIMEDOUT: the
  // next call continues. Every other error stays.
  status ready(std::chrono::milliseconds limit);
  executor_kind executor() const noexcept;

  // ---- On a stream: returns once queued. EAGAIN: most_queued; nothing was queued, try again later. EACCES: in a forked
  // child. The channel's error once it has one.
  //
  // On a stream that is being captured the counts are others, of captured puts and waits. Graphs must be destroyed before
  // the channel ends. An executable must not run twice at the same time. ENOTSUP: this executor cannot be captured. Where
  // the peer waits by kernels: the n-th captured put that is launched meets the n-th captured wait that the peer launches,
  // and `depth` counts releases as outside of graphs. Else: captured put n meets the peer's captured wait n, at every launch
  // of the two graphs. There are 64 of each at a time (ENOSPC), given back when the graph and what was instantiated from it
  // are destroyed. A put waits for the release of its own last launch; `depth` does not matter. `source`: this GPU's memory,
  // untouched until the stream has come past the put.
  result<std::uint64_t> put_signal(cu::stream_t stream, const remote_window& window, std::uint64_t offset,
                                   cu::device_ptr source, std::size_t bytes);
  result<std::uint64_t> signal(cu::stream_t stream);
  // Waits for the next operation: the n-th call without a number waits for put or signal n. `sequence` selects another one
  // and does not change which is next (EINVAL in a capture).
  result<std::uint64_t> wait_signal(cu::stream_t stream);
  status wait_signal(cu::stream_t stream, std::uint64_t sequence);
  // The peer may overwrite the bytes of its puts up to `sequence`. In a capture: the put of captured wait `sequence`, which
  // must belong to this capture (EINVAL).
  status release(cu::stream_t stream, std::uint64_t sequence);

  // ---- On the CPU
  // Whether the peer's put or signal has arrived. About 1 us (a read of GPU memory). Returns the channel's error.
  result<bool> arrived(std::uint64_t sequence) const;
  // ETIMEDOUT: not within `limit`; the channel stays usable. ECANCELED: the channel ends on another thread; the caller holds
  // it.
  status host_wait(std::uint64_t sequence, std::chrono::nanoseconds limit) const;
  // From one to the other, the end of the channel waits for the caller. hold() itself must not meet the end.
  void hold() const noexcept { holders_.fetch_add(1, std::memory_order_relaxed); }
  void drop() const noexcept { holders_.fetch_sub(1, std::memory_order_release); }
  // Releases every stream that waits on this channel, here and at the peer, for good. `code`: a positive errno.
  void cancel(int code);
  channel_state state() const;
  // Queued operations and what a stuck stream waits for, as text for people.
  std::string diag() const;

 private:
  friend class context;
  channel(context& owner, std::shared_ptr<channel_core> core);
  status check(std::uint64_t queued, std::uint64_t retired);
  result<capture> enter(cu::stream_t stream);
  result<std::uint64_t> put_captured(cu::stream_t stream, put_request request, const capture& capture_state);
  result<std::uint64_t> wait_captured(cu::stream_t stream, const capture& capture_state);
  result<std::uint64_t> put_counted(cu::stream_t stream, put_request request, const capture& capture_state);
  result<std::uint64_t> wait_counted(cu::stream_t stream, const capture& capture_state);
  status release_captured(cu::stream_t stream, std::uint64_t number, const capture& capture_state);
  // A stream writes the word `reached` (offset in host_words) when it arrives, then waits until the word `flag` (in
  // gpu_words) is at least `value`. Where the CPU cannot read `flag`, the stream also writes `passed` after the wait.
  struct wait_request {
    std::size_t flag, reached, passed;
    std::uint64_t value, reached_value, passed_value;
  };
  status queue_wait(cu::stream_t stream, const wait_request& wait);
  status can_come(std::uint64_t sequence) const;
  status check_process() const;
  context* context_;
  mutable std::atomic<unsigned> holders_{0};
  std::atomic<bool> is_ending_{false};
  std::shared_ptr<channel_core> core_;
  std::unique_ptr<class channel_setup> setup_;  // until the end is ready
  std::unique_ptr<class executor> executor_;
  std::uint64_t next_ = 1;  // sequence of the next unnumbered wait
};

}  // namespace pl::triggered
