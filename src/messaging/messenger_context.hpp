// SPDX-License-Identifier: Apache-2.0
// What every part of a messenger needs: the job, the peers, the memory, the limits, and the life of an operation.
//
// Owns: the table of peers, the pool of operations, the access to buffers, the statistics.
// Threads: the messenger's lock guards all of it; the constants may be read without it.
// Errors: end() stores an operation's errno value and sentence; the functions here fail only where they say so.
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

// What this process knows of another one. Each transport keeps its own state of a peer.
struct peer_state {
  int rank = -1;
  bool is_same_node = false;
  bool is_lost = false;  // its process may be gone, and `pid` may be another one's by now
  bool is_dead = false;  // lost, and what it had sent whole has been taken
  bool has_left = false;
  std::uint32_t incarnation = 1;       // which process of its rank it is; 0: none that this process has known
  std::string loss;                    // is_dead: how it was noticed, with the rank
  bool can_take_gpu_pointers = false;  // UCX has RDMA lanes for GPU memory at both ends
  std::uint16_t gpu = 0;
  pid_t pid = 0;
  std::uint64_t barriers = 0;      // the last one that it has entered
  std::uint64_t puts = 0;          // not answered yet
  int put_outcome = 0;             // of the last put that came from it, once that has ended
  std::uint64_t last_deposit = 0;  // that put, if it was a long one
  // Its liveness() when it last missed a deadline. While that has not changed, nobody waits for it again.
  std::pair<std::uint64_t, std::uint64_t> unanswered_state{~0ull, ~0ull};
  // packet_channel
  std::uint32_t sent = 0, received = 0;  // frames
  std::map<std::uint32_t, early_packet> early;
  std::size_t early_bytes = 0;    // of `early`
  shm_queue queue_out, queue_in;  // same node
  wakeup::doorbell doorbell;      // same node
  bool has_light_barrier = false;
  bool is_rung_in_vain = false;  // it sleeps, and could not be woken yet
  std::deque<packet*> unsent;    // for which the queue has no room yet
  // Credit: what a peer's messages cost here before a receive takes them is bounded by their sender, which knows the limit
  // of each receiver (`cost_limit`: that peer's). Here `held_cost` is compared with it, since the sender may be no honest
  // one.
  std::uint64_t sent_cost = 0, granted_cost = 0, taken_cost = 0, reported_cost = 0;
  std::uint64_t cost_limit = 0, held_cost = 0;
  intrusive_list<operation, &operation::in_queue> waiting_sends;

  // Counters that change whenever the peer shows a sign of life.
  std::pair<std::uint64_t, std::uint64_t> liveness() const noexcept {
    return {received, queue_out.is_open() ? queue_out.reader_position() : 0};
  }
};

struct messenger_context {
  messenger_context(const cu::driver_table* driver, const messenger_options& wanted, int own_rank, int job_size);
  // The copy planner, the GPU and the limits. The planner's error if there is none of the application's.
  status open_memory();

  bool is_foreign_process() const noexcept;  // a forked child
  peer_state& peer(int peer_rank) { return peers[static_cast<std::size_t>(peer_rank)]; }
  const peer_state& peer(int peer_rank) const { return peers[static_cast<std::size_t>(peer_rank)]; }
  // EINVAL: no such rank. ECONNRESET: it is gone.
  std::optional<failure> refuses_peer(int peer_rank) const;
  touch touch_of(const memory& range);

  // Ends the operation once; later calls have no effect. It returns to the pool if it was released.
  void end(operation& op, int code, std::string message = {});
  // The same, well, of a receive that has used no more than its range and its info.
  void end_plain(operation& receive) {
    receive.is_plain = true;
    receive.state = operation_state::ended;
    wake.note();
    if (receive.is_released) operations.give_back(receive);
  }
  // No request refers to it any more.
  void release(operation& op);
  std::vector<std::uint64_t> due_words;  // operations that wait no more for the deposit before them
  // An operation that has failed. It is not of the pool: a forked child must not touch what the parent's threads may hold.
  static operation& failed(operation_kind kind, int code, std::string message);
  // Ends a receive or a get with the payload of an eager frame.
  void deliver(operation& receive, const std::byte* payload, std::size_t bytes, int outcome);

  // A put has ended: what waits for it is due, or fails like it. The put was that one's alone.
  void follow(operation& put);

  const std::uint32_t epoch;
  const messenger_options options;
  const int rank, size;
  const cu::driver_table* const cuda;  // null: host memory only
  copy::gpu_table gpus;                // whose DMA channels windows and messages use
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
