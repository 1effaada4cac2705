// SPDX-License-Identifier: Apache-2.0
// The end of an asynchronous copy: to be tested, waited for, or handed to the GPU.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "copy/copy_engine.hpp"
#include "copy/gpu_engine.hpp"
#include "copy/planner.hpp"
#include "copy/wake_descriptor.hpp"

namespace pl::copy {

// Movable; used by one thread at a time. The memory of the copies must stay until it is done; dropping it before waits.
// A completed operation gives the same guarantees as a synchronous copy (planner.hpp).
class completion {
 public:
  completion() = default;  // done
  completion(completion&& other) noexcept = default;
  completion& operator=(completion&& other) noexcept;
  ~completion();

  // True: done. A failure is reported once and ends it. Does not block, except when the GPU engine did not take a copy: that
  // copy is then done within this call by another method.
  result<bool> test();
  status wait();
  // A descriptor for poll, epoll and event loops: it becomes readable when the copies may have ended; test() tells, and
  // makes it wait for the next time. So: ask for it, add it to the loop, test once, and test whenever it is readable. It is
  // this object's and closes when the copies have ended: take it out of the loop before that test or wait.
  //
  // A copy by DMA channel raises an interrupt of the GPU. For others a thread of the planner or a clock wakes, within some
  // 0.2 ms of their end; each millisecond for a channel that waits for a stream, which takes no more commands meanwhile. A
  // failure wakes too, at most 20 ms late. EACCES: a forked child; EMFILE: the limit of open files.
  result<int> descriptor();
  // `stream` (of any context and GPU) waits on the GPU for the copies; work queued there afterwards sees their data. Copies
  // that only the CPU can finish are waited for on the CPU before this returns, which docs/ordering-copies.md lists.
  // EBUSY: the stream is being captured into a graph.
  status make_wait(cu::stream_t stream);
  // Records `event` behind the copies, likewise.
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
