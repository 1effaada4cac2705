// SPDX-License-Identifier: Apache-2.0
// State that all parts of a messenger share: the job, the peers, the memory, the limits, and the operations.
//
// Owns: the table of peers, the pool of operations, the access to buffers, the statistics.
// Threads: the messenger's lock guards everything except constants.
// Errors: end() stores an errno value and a message in the operation. Functions fail only where they say so.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copy/gpu_queues.hpp"
#include "messaging/gpu_sharing.hpp"
#include "messaging/memory_access.hpp"
#include "messaging/messenger.hpp"
#include "messaging/request_state.hpp"
#include "messaging/thresholds.hpp"
#include "messaging/transport/shm_queue.hpp"
#include "messaging/wakeup.hpp"

namespace pl::messaging {

// A packet that overtook earlier ones of the same sender.
struct early_packet {
  byte_string whole;
  remote_data data;
};

// State of a peer. Each transport also has its own state for each peer.
struct peer_state {
  int rank = -1;
  bool is_same_node = false;
  bool is_lost = false;  // its process may be gone, and `pid` may belong to another process by now
  bool is_dead = false;  // it is lost, and all complete packets from it have been taken
  bool has_left = false;
  std::uint32_t incarnation = 1;       // counts the processes of its rank; 0: none that this process has known
  std::string loss;                    // if is_dead: a message with the rank and how the loss was noticed
  bool can_take_gpu_pointers = false;  // UCX has RDMA lanes for GPU memory at both ends
  std::uint16_t gpu = 0;
  pid_t pid = 0;
  std::uint64_t barriers = 0;      // number of the last barrier that it has entered
  std::uint64_t puts = 0;          // number of puts to it that are not answered yet
  int put_outcome = 0;             // errno of the last put from it, once that has ended
  std::uint64_t last_deposit = 0;  // operation of that put, if it used a rendezvous
  // Value of liveness() when it last missed a deadline. Until it changes, no call waits for this peer again.
  std::pair<std::uint64_t, std::uint64_t> unanswered_state{~0ull, ~0ull};
  // Used by packet_channel
  std::uint32_t sent = 0, received = 0;  // number of frames
  std::map<std::uint32_t, early_packet> early;
  std::size_t early_bytes = 0;    // of `early`
  shm_queue queue_out, queue_in;  // same node
  wakeup::doorbell doorbell;      // same node
  bool has_light_barrier = false;
  bool is_wakeup_failed = false;  // it sleeps and could not be woken yet
  std::deque<packet*> unsent;     // packets that wait for room in the queue
  // Credit: bounds the memory of messages that no receive has taken yet. The sender keeps the cost of its messages below the
  // limit of the receiver (`cost_limit` of that peer). The receiver checks `held_cost` too, because the sender is not
  // trusted.
  std::uint64_t sent_cost = 0, granted_cost = 0, taken_cost = 0, reported_cost = 0;
  std::uint64_t cost_limit = 0, held_cost = 0;
  intrusive_list<operation, &operation::in_queue> waiting_sends;

  // Counters, at least one of which changes whenever the peer makes progress.
  std::pair<std::uint64_t, std::uint64_t> liveness() const noexcept {
    return {received, queue_out.is_open() ? queue_out.reader_position() : 0};
  }
};

struct messenger_context {
  messenger_context(const cu::driver_table* driver, const messenger_options& wanted, int own_rank, int job_size);
  // Sets up the copy planner, the GPU and the limits. Fails if the application passed no planner and none can be opened.
  status open_memory();

  bool is_foreign_process() const noexcept;  // true in a forked child
  peer_state& peer(int peer_rank) { return peers[static_cast<std::size_t>(peer_rank)]; }
  const peer_state& peer(int peer_rank) const { return peers[static_cast<std::size_t>(peer_rank)]; }
  // Why the peer cannot be used; empty: it can. EINVAL: no such rank. ECONNRESET: it is gone.
  std::optional<failure> refuses_peer(int peer_rank) const;
  touch touch_of(const memory& range);
  // options.copy_threads, or this rank's share of the CPUs, which the other ranks of the node use as well; from 1 to 6.
  unsigned copy_threads() const;

  // Ends the operation; later calls have no effect. It returns to the pool if it was released.
  void end(operation& op, int code, std::string message = {});
  // Ends a receive successfully that has used no members other than its range and its info; faster than end().
  void end_plain(operation& receive) {
    receive.is_plain = true;
    receive.state = operation_state::ended;
    wake.note();
    if (receive.is_released) operations.give_back(receive);
  }
  // Call it when no request refers to the operation any more.
  void release(operation& op);
  std::vector<std::uint64_t> due_words;  // operations whose preceding deposit has ended
  // Returns an operation that has failed. It does not come from the pool, whose state may be in use by a thread of the
  // parent when a forked child calls this.
  static operation& failed(operation_kind kind, int code, std::string message);
  // Ends a receive or a get with the payload of an eager frame.
  void deliver(operation& receive, const std::byte* payload, std::size_t bytes, int outcome);

  // Call it when a put has ended. The operation that follows it becomes due, or fails with the same error.
  void follow(operation& put);

  const std::uint32_t epoch;
  const messenger_options options;
  const int rank, size;
  const cu::driver_table* const cuda;  // null: host memory only
  copy::gpu_table gpus;                // DMA channels for windows and messages
  std::unique_ptr<copy::planner> own_planner;
  memory_access buffers;
  thresholds limits;
  messenger::statistics counts;
  wakeup wake;
  std::vector<peer_state> peers;
  operation_pool operations;
  gpu_sharing gpu_use;
};

}  // namespace pl::messaging
