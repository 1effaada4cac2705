// SPDX-License-Identifier: Apache-2.0
// The GPU's copy engines (DMA), used by CUDA's asynchronous copies on private streams. The stream marks the end of a
// copy by a word in pinned host memory (cuStreamWriteValue32). Polling it is about 1 us cheaper than
// cuStreamSynchronize, and needs no driver call.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "copy/gpu_context.hpp"
#include "copy/transfer.hpp"

namespace pl::copy {

class copy_engine {
 public:
  // Queued work. Valid as long as the engine lives. May be queried any number of times, from any thread, until 2^31
  // later tickets of its channel (an hour at half a million a second) make it look new.
  struct ticket {
    std::uint32_t channel = 0;
    std::uint32_t value = 0;
  };

  // Opens `channels` (at least one) non-blocking streams of the highest priority, over which threads are spread. A
  // failed open leaves nothing behind. `first_value` is where the channels start to count; tests start near the wrap.
  static result<std::unique_ptr<copy_engine>> open(const gpu_context& context, unsigned channels = 4,
                                                   std::uint32_t first_value = 0);
  // Waits for queued work. Does nothing if the context is gone, or in a forked child.
  ~copy_engine();
  copy_engine(const copy_engine&) = delete;
  copy_engine& operator=(const copy_engine&) = delete;

  const gpu_context& context() const noexcept;
  // False in a forked child, where every call answers EACCES: CUDA does not work there and the words are not mapped.
  bool is_of_this_process() const noexcept;

  // Queues the copies, which have no order among themselves, on one channel and returns a ticket for all of them. Host
  // memory should be pinned: CUDA stages other memory itself, slowly, and returns from to_host only when that is done.
  // With `has_after`, the copies wait for what the stream `after` has queued so far; null then is the default stream of
  // the thread's current context. EBUSY if that stream is being captured into a graph, where "so far" has no meaning.
  // On failure nothing more is queued, and what was queued before the failing copy has ended. `turn`: calls of one
  // thread with different turns go to different channels, if there are enough. A channel signals the end of its copies,
  // and copies of another channel fill that gap of 6 to 10 us (H200).
  result<ticket> submit(std::span<const transfer> copies, cu::stream_t after = nullptr, bool has_after = false,
                        unsigned turn = 0);
  result<ticket> submit(const transfer& copy) { return submit(std::span(&copy, 1)); }
  // Sets bytes; asynchronous like a copy.
  result<ticket> submit_fill(std::uint64_t dst, unsigned char value, std::size_t bytes);

  // Whether it has ended. Acquire: the data is there when this returns true. Never blocks, and makes no driver call
  // unless the driver lacks cuStreamWriteValue32. Does not detect work that will never end; wait() does.
  bool is_done(const ticket& queued) const noexcept;
  // Polls; every millisecond asks the driver whether the stream is still alive. EIO with the driver's reason (the
  // context was destroyed, a kernel of the application faulted). ETIMEDOUT after `timeout_ms` (0: no limit); the copy
  // may then still run.
  status wait(const ticket& queued, unsigned timeout_ms = 0);
  // make_wait: `stream` waits, on the GPU, for the ticket (null: the current context's default stream; EBUSY if it is
  // being captured). record: records `event`, which must be of this engine's context, after it. Both may come after
  // later work of the same channel.
  status make_wait(cu::stream_t stream, const ticket& queued);
  status record(cu::event_t event, const ticket& queued);

 private:
  struct state;
  explicit copy_engine(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

}  // namespace pl::copy
