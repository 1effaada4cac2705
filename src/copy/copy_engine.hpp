// SPDX-License-Identifier: Apache-2.0
// The GPU's copy engines (DMA), by CUDA's asynchronous copies on private streams. The end of a copy is a word in pinned host
// memory that the stream writes behind it (cuStreamWriteValue32): polling that is about 1 us cheaper than
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
  // Work that was queued. Valid as long as the engine lives; may be asked any number of times, from any thread, until 2^31
  // younger ones of its channel (an hour at half a million a second) make it look new.
  struct ticket {
    std::uint32_t channel = 0;
    std::uint32_t value = 0;
  };

  // `channels` streams (non-blocking, highest priority), at least one: threads spread over them. Nothing is kept of a failed
  // open. `first_value`: where the channels start to count; tests start near the wrap.
  static result<std::unique_ptr<copy_engine>> open(const gpu_context& context, unsigned channels = 4,
                                                   std::uint32_t first_value = 0);
  // Waits for what is queued. Touches nothing where the context is gone, or in a forked child.
  ~copy_engine();
  copy_engine(const copy_engine&) = delete;
  copy_engine& operator=(const copy_engine&) = delete;

  const gpu_context& context() const noexcept;
  // False in a forked child, where every call answers EACCES: CUDA does not work there and the words are not mapped.
  bool is_of_this_process() const noexcept;

  // Queues the copies, which have no order among themselves, on one channel and returns a ticket behind all. Host memory
  // should be pinned: CUDA stages other memory itself, slowly, and returns from to_host only when that is done. With
  // `has_after`, the copies wait for what the stream `after` has queued so far; null then is the default stream of the
  // thread's current context. EBUSY if that stream is being captured into a graph: it has no "so far" then. On failure
  // nothing more is queued, and what was queued before the failing copy has ended. `turn`: calls of one thread with
  // different turns go to different channels, if there are so many. A channel signals the end of its copies; copies of
  // another channel fill that gap of 6 to 10 us (H200).
  result<ticket> submit(std::span<const transfer> copies, cu::stream_t after = nullptr, bool has_after = false,
                        unsigned turn = 0);
  result<ticket> submit(const transfer& copy) { return submit(std::span(&copy, 1)); }
  // Sets bytes; asynchronous like a copy.
  result<ticket> submit_fill(std::uint64_t dst, unsigned char value, std::size_t bytes);

  // Whether it has ended. Acquire: the data is there when it says true. Never blocks; no driver call, except where the
  // driver lacks cuStreamWriteValue32. Does not detect work that will never end; wait() does.
  bool is_done(const ticket& queued) const noexcept;
  // Polls; every millisecond asks the driver whether the stream still lives. EIO with the driver's reason (the context was
  // destroyed, a kernel of the application faulted), ETIMEDOUT after `timeout_ms` (0: none); the copy may then still run.
  status wait(const ticket& queued, unsigned timeout_ms = 0);
  // `stream` waits, on the GPU, for the ticket (null: the current context's default stream; EBUSY if it is being captured).
  // / Records `event`, which must be of this engine's context, behind it. Both may come behind younger work of the same
  // channel.
  status make_wait(cu::stream_t stream, const ticket& queued);
  status record(cu::event_t event, const ticket& queued);

 private:
  struct state;
  explicit copy_engine(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

}  // namespace pl::copy
