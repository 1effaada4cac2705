// SPDX-License-Identifier: Apache-2.0
// Streams: ordered queues that run asynchronously, one worker thread each (started on first use).
//
// A submission gets a ticket; operation n is complete when completed() >= n. Order between streams (the legacy stream
// against blocking ones) is a list of (stream, ticket) pairs fixed when the operation is submitted, all of them
// submitted earlier, so waiting for them can not form a cycle. An operation runs with no lock held.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/store_buffer.hpp"

namespace pl::sim {

struct capture;  // capture.hpp

// State that operations in flight share and that outlives their context.
struct context_state {
  std::atomic<int> error{code::success};  // sticky: the first fault of a kernel
  std::atomic<bool> stopped{false};       // the context is being destroyed: waits and kernels give up
  bool ended() const { return stopped.load(std::memory_order_relaxed) || error.load(std::memory_order_relaxed) != 0; }
  void fail(int reason) {
    int none = code::success;
    error.compare_exchange_strong(none, reason);
  }
};

class stream : public std::enable_shared_from_this<stream> {
 public:
  using ticket = std::uint64_t;
  using action = std::function<void()>;
  struct dependency {
    std::shared_ptr<stream> target_stream;
    ticket position;
  };

  stream(context_t owner, std::shared_ptr<context_state> fate, int device, unsigned flags, int priority)
      : owner_(owner),
        fate_(std::move(fate)),
        flags_(flags),
        priority_(priority),
        stores_(std::make_shared<store_buffer>(device, false)) {}

  context_t owner() const { return owner_; }
  unsigned flags() const { return flags_; }
  int priority() const { return priority_; }
  bool is_blocking() const { return (flags_ & stream_flag::non_blocking) == 0; }

  // Which of its context's hardware queues the stream goes through; set when it is made.
  unsigned queue = 0;

  // Queues work. `always` runs even when the context has failed or is being destroyed (bookkeeping, not device work).
  ticket submit(std::vector<dependency> after, action work, bool always);
  // Claims the stream for work that the caller then runs itself through run_claimed; false if work is outstanding.
  bool try_claim(ticket& claimed);
  void run_claimed(const action& work);

  // Returns when the operation is complete and what it stored can be seen everywhere.
  void wait(ticket position);
  ticket submitted();
  bool is_idle();
  bool has_completed(ticket position);
  // Fewer than `depth` operations are outstanding.
  bool has_room(std::uint64_t depth);
  void wait_for_room(std::uint64_t depth);

  // Stream capture, under graph_mutex(): the sequence the stream takes part in, the nodes that its next node follows, and
  // the copy of these that the application last received.
  std::shared_ptr<capture> in_capture;
  std::vector<graph_node_t> tails;
  std::vector<graph_node_t> shown_tails;

 private:
  struct operation {
    std::vector<dependency> after;
    action work;
    bool always;
  };

  void start_worker_locked();
  void run_without_worker(std::unique_lock<std::mutex>& lock);
  void run_first(std::unique_lock<std::mutex>& lock);
  void work_loop();
  void execute(operation& next);

  const context_t owner_;
  const std::shared_ptr<context_state> fate_;
  const unsigned flags_;
  const int priority_;
  const std::shared_ptr<store_buffer> stores_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<operation> queue_;
  ticket submitted_ = 0;
  ticket completed_ = 0;
  bool is_running_ = false;  // one operation is being executed, by the worker or by a claiming thread
  bool has_worker_ = false;
};

// Starts a detached thread that takes no signals: the application's handlers belong to its own threads.
void start_thread(std::function<void()> body);

}  // namespace pl::sim
