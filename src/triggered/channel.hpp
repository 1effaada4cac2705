// SPDX-License-Identifier: Apache-2.0
// A channel: puts, signals and waits between two GPUs, queued on CUDA streams.
//
// Each end counts its puts and signals from 1 and its waits from 1: wait n of one end is over when put or signal n of the
// other end is complete. The stream goes on by itself then; no CPU is asked (executor P), or only the service threads are
// (executor X).
//
// Order: what the stream did before put(n) is visible to what the peer's stream does after wait(n). Puts and signals of one
// end must come from one stream at a time, or from streams ordered by events. Windows are the caller's business: a put
// into bytes that the peer still uses is a race, unless the peer releases what it has read and `depth` bounds the puts.
//
// Threads: one at a time per channel, any number of channels. cancel(), state() and sent()/arrived() from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.hpp"
#include "triggered/executor.hpp"

namespace pl::stream {

class context;
struct channel_core;
struct capture;

enum class wait_way : std::uint32_t { front_end = 0, kernel = 1 };

struct channel_options {
  executor_kind executor = executor_kind::automatic;
  // Puts that the peer has not released: put(n) waits on the stream for release(n - depth). 0: no such wait, the peer
  // need not release.
  unsigned depth = 0;
  // Waits that streams have not come past, and puts that have not left: beyond, calls answer EAGAIN rather than fill the
  // driver's launch queue, where a call would block and with it the calls for other streams.
  unsigned most_queued = 256;  // at most 1000
  // How a stream waits. A polling kernel hears 3 us sooner and is one more launch for the CPU (3 us), but for none in a
  // graph, where it is also what makes an operation one node (graph_slots.hpp). It needs the GPU to be this process's own:
  // with others on it, kernels that poll take turns with them, so where ranks of this job share a GPU, and where there are
  // no kernels in this build, the front end waits whatever is said here; diag() tells.
  wait_way wait = wait_way::front_end;
  // A captured wait releases its put by itself, right behind the wait: for puts whose bytes nobody overwrites while they are
  // used, and signals. Else the graph must hold a release for each of its waits, or the graph works only once.
  bool releases_captured_waits = false;
  // A stream that has stood in one wait for so long, or before a put for a release, is let go, and the channel is in error
  // ETIMEDOUT. Negative: the context's; 0: never. Without a CPU mapping of GPU memory puts have no time-out.
  std::chrono::nanoseconds wait_timeout{-1};
};

// Once not 0, `error` stays: ETIMEDOUT, ECONNRESET (peer gone), ECANCELED, EPIPE (the peer's end is in error, or it was
// closed and a stream stood in a wait for what will not come), EIO. Streams that waited have been let go and run on with
// whatever data is there.
struct channel_state {
  executor_kind executor = executor_kind::automatic;
  int error = 0;
  std::string why;
  std::uint64_t puts = 0;     // queued, signals included
  std::uint64_t sent = 0;     // have left this GPU
  std::uint64_t waits = 0;    // queued
  std::uint64_t reached = 0;  // a stream has come to them
  std::uint64_t passed = 0;   // a stream has got past them; 0 where the CPU cannot read GPU memory
};

class channel {
 public:
  // Ends what the peer's streams and ours still wait for (ECANCELED here, EPIPE there). What was put before stays with the
  // peer: its waits for that, queued earlier or later, are satisfied; EPIPE answers only waits for what will not come, and
  // new puts. Graphs with slots can still be launched without our knowing: the peer's end is in error if it holds one.
  ~channel();
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;

  // Waits for the peer to make its end. The first other call does it with the context's time limit; this one is for
  // whoever wants to say when. Two ends of one process may be made one after the other before either is ready.
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
  // For the next one: the n-th call that names none waits for put or signal n. `sequence` names an earlier or later one and
  // does not change what is next (EINVAL: in a capture).
  result<std::uint64_t> wait_signal(cu::stream_t stream);
  status wait_signal(cu::stream_t stream, std::uint64_t sequence);
  // The peer's puts up to `sequence` have been used: their bytes may be written again. In a capture: the put of captured
  // wait `sequence`, which must be of this capture (EINVAL).
  status release(cu::stream_t stream, std::uint64_t sequence);

  // ---- On the CPU
  // Whether the peer's put or signal is here; about 1 us (a read of GPU memory). The channel's error.
  result<bool> arrived(std::uint64_t sequence) const;
  // ETIMEDOUT: not within `limit`; the channel is unharmed.
  status host_wait(std::uint64_t sequence, std::chrono::nanoseconds limit) const;
  // Lets go of every stream that waits on this channel, here and at the peer, for good. `code`: a positive errno.
  void cancel(int code);
  channel_state state() const;
  // What is queued and what a stuck stream waits for, in lines for people.
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
  // The stream says in the word `reached` (offset in host_words) that it is there, then waits until the word `flag` (in
  // gpu_words) is at least `value`. Where the CPU cannot read that, it says in `passed` that it has got past.
  struct wait_request {
    std::size_t flag, reached, passed;
    std::uint64_t value, reached_value, passed_value;
  };
  status queue_wait(cu::stream_t stream, const wait_request& wait);
  status can_come(std::uint64_t sequence) const;
  status check_process() const;
  context* context_;
  std::shared_ptr<channel_core> core_;
  std::unique_ptr<class executor> executor_;
  std::uint64_t next_ = 1;  // what a wait that names nothing waits for
};

}  // namespace pl::stream
