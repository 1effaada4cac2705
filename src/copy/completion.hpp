// SPDX-License-Identifier: Apache-2.0
// The end of an asynchronous copy, to be tested, waited for, or passed to the GPU.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "copy/copy_engine.hpp"
#include "copy/gpu_engine.hpp"
#include "copy/planner.hpp"
#include "copy/wake_descriptor.hpp"

namespace pl::copy {

// Movable; used by one thread at a time. The memory of the copies must stay until it is done; the destructor waits. A
// completed operation gives the same guarantees as a synchronous copy (planner.hpp).
class completion {
 public:
  completion() = default;  // done
  completion(completion&& other) noexcept = default;
  completion& operator=(completion&& other) noexcept;
  ~completion();

  // Returns true when done. A failure is reported once, and ends the operation. Does not block, except if the GPU
  // engine did not take a copy, which is then done within this call by another method.
  result<bool> test();
  status wait();
  // A descriptor for poll, epoll and event loops. It becomes readable when the copies may have ended; test() checks,
  // and rearms it. Usage: get the descriptor, add it to the loop, call test() once, and again whenever it is readable.
  // This object owns the descriptor and closes it when the copies have ended: remove it from the loop before that call
  // of test() or wait().
  //
  // A copy by DMA channel raises an interrupt of the GPU. For others, a thread of the planner or a timer wakes the
  // descriptor within about 0.2 ms of their end; for a channel that waits for a stream, each millisecond, since it
  // takes no more commands meanwhile. A failure also wakes it, at most 20 ms late. EACCES: a forked child. EMFILE: the
  // limit of open files.
  result<int> descriptor();
  // `stream` (of any context and GPU) waits on the GPU for the copies; work queued there afterwards sees their data.
  // Copies that only the CPU can finish (docs/ordering-copies.md lists them) are waited for on the CPU before this
  // returns. EBUSY: the stream is being captured into a graph.
  status make_wait(cu::stream_t stream);
  // Records `event` after the copies, with the same rules.
  status record(cu::event_t event);

 private:
  friend class planner;
  struct job;  // for the planner's own thread
  struct queued {
    copy_engine* dma;
    copy_engine::ticket ticket;
  };
  struct given {  // to the GPU engine
    gpu_engine* engine;
    gpu_engine::request request;
    transfer piece;
  };
  bool is_empty() const noexcept { return queued_.empty() && given_.empty() && on_channel_.empty() && job_ == nullptr; }
  result<bool> poll();
  void drop_channel_part() noexcept;
  status end(const result<gpu_engine::fate>& fate, const transfer& transfer);

  planner* owner_ = nullptr;
  gpu_state* state_ = nullptr;  // of the first copy: its streams can record an event
  std::vector<queued> queued_;
  std::vector<given> given_;
  std::vector<dma_engine::operation> on_channel_;
  std::shared_ptr<job> job_;
  std::shared_ptr<wake_descriptor> wake_;
};

}  // namespace pl::copy
