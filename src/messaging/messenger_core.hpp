// SPDX-License-Identifier: Apache-2.0
// The messenger's inside. All of it runs under one lock; what the files do:
//   engine.cpp      opening, peers, packets in order, progress, death
//   tag_send_recv.cpp       messages: sends, receives, matching, cancelling
//   rndv.cpp        announced messages: which way, its start and end
//   shm_ring_rndv.cpp    ... through shared memory      ucx_rndv.cpp  ... through UCX
//   cuda_ipc_rndv.cpp     ... from GPU to GPU            cma_rndv.cpp     ... from host memory, read in place
//   rma.cpp      windows: put, get, atomics
//   window_revocation.cpp      memory that its owner takes back while a transport uses it
//   barrier.cpp     barriers
#pragma once

#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>

#include "copy/worker_pool.hpp"
#include "messaging/memory_access.hpp"
#include "messaging/messenger.hpp"
#include "messaging/node.hpp"
#include "messaging/request_state.hpp"
#include "messaging/rndv.hpp"
#include "messaging/tag_match.hpp"
#include "messaging/thresholds.hpp"
#include "messaging/transport/cuda_ipc_cache.hpp"
#include "messaging/transport/pinned_pool.hpp"
#include "messaging/transport/shm_queue.hpp"
#include "messaging/transport/shm_ring.hpp"
#include "messaging/transport/ucx_fabric.hpp"

namespace pl::link {

// What each process tells the others when the messenger opens; UCX's address follows.
struct introduction {
  std::uint32_t protocol = kProtocol;
  std::uint32_t is_ready = 0;
  node_identity node;
  shm_outbox::name outbox;
  std::uint8_t has_gpu_lanes = 0;
  std::uint8_t wants_calibration = 0;
  port_list ports{};  // of UCX
};

// A packet that belongs to no operation.
struct control_packet : packet {
  std::array<std::byte, 64> inline_data;
  engine* home = nullptr;
  control_packet* next = nullptr;
};

// One direction of a shared ring: copies into or out of its chunks, which end in order.
struct ring_end {
  std::unique_ptr<shm_ring> ring;
  int refusal = 0;  // errno of the attempt to make or open it: there is no second one
  // It could not be opened because its owner is no more.
  bool is_gone() const noexcept {
    return refusal == ENOENT || refusal == ESRCH || refusal == ESTALE || refusal == ECONNRESET;
  }
  std::uint64_t begun = 0;  // chunks whose copy has begun
  std::uint64_t ended = 0;  // chunks whose copy has ended: published, or emptied
  std::array<chunk_copy, shm_ring::kChunks> copies;
  std::array<shm_ring::label, shm_ring::kChunks> labels{};
  std::array<std::uint64_t, shm_ring::kChunks> senders{};  // out: the operations that fill
  unsigned expected = 0;                                   // in: transfers that have been ordered
};

// Came before others that its sender had sent before it.
struct early_packet {
  byte_string whole;
  remote_data data;
};

struct peer_state {
  int rank = -1;
  bool is_same_node = false;
  bool is_dead = false;
  bool has_left = false;
  bool refuses_pull = false;           // the kernel does not let its memory be read
  bool can_take_gpu_pointers = false;  // UCX has RDMA lanes for GPU memory at both ends
  std::uint16_t gpu = 0;
  pid_t pid = 0;
  std::uint32_t sent = 0, received = 0;  // frames
  std::map<std::uint32_t, early_packet> early;
  std::uint64_t sent_cost = 0, granted_cost = 0, taken_cost = 0, told_cost = 0;
  intrusive_list<operation, &operation::in_queue> waiting_sends;
  std::uint64_t barriers = 0;  // that it has told of
  // What had been heard of it when it last did not answer in time: as long as that is all, nobody waits for it again.
  std::pair<std::uint64_t, std::uint64_t> silent_at{~0ull, ~0ull};
  std::uint64_t puts = 0;  // not answered yet
  // Same node: packets, and those for which there is no room yet.
  shm_lane lane_out, lane_in;
  std::deque<packet*> unsent;
  ring_end out, in;
  intrusive_list<operation, &operation::in_queue> to_fill;  // transfers that leave through `out`
};

struct atomic_request {
  atomic_op what = atomic_op::add;
  std::uint64_t operand = 0, compare = 0;
};

// The barrier under way. One that has timed out goes on with the next call.
struct barrier_state {
  std::uint64_t number = 0;  // of this one, or of the last
  int distance = 1;          // of this round: 1, 2, 4 ...
  bool is_open = false;
  bool has_told = false;     // in this round
  bool is_attended = false;  // a thread waits for it
};

constexpr const char* kTakenBack = "its sender has taken the message back (a time-out there, or it was dropped)";

struct engine final : fabric::listener {
  engine(const cu::driver_table* cuda, const messenger_options& wanted, int rank, int size);
  ~engine();

  // ---- engine.cpp
  status open(bootstrap& with);
  // Without the network: for polls between others that ask it.
  bool progress(bool with_network = true);
  void lose(int rank, const std::string& why);
  void end(operation& what, int code, std::string message = {});
  void release(operation& what);
  void depart(int peer, packet& what);
  void depart_operation(operation& what, frame_kind kind, std::size_t payload,
                        int (*read)(packet&, std::size_t, void*, std::size_t));
  void control(int peer, frame head, const void* data = nullptr, std::size_t bytes = 0);
  operation& failed(operation_kind kind, int code, std::string message);
  peer_state& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  bool is_foreign_process() const noexcept;
  std::optional<failure> refuses_peer(int rank) const;
  touch touch_of(const memory& what);
  // Waits, with progress, until `done` yields a status.
  template <class Done>
  status wait_until(Done done, std::chrono::milliseconds limit);
  // Until the operation's memory is the caller's again; in bounded time.
  void take_back(operation& what);

  // ---- tag_send_recv.cpp
  operation& isend(int to, const buffer& from, std::uint64_t tag);
  operation& irecv(int from, const buffer& to, std::uint64_t tag, std::uint64_t mask);
  operation* find_message(int from, std::uint64_t tag, std::uint64_t mask, bool take);
  operation& receive_taken(operation& arrival, const buffer& to);
  void discard(operation& arrival);
  status cancel(operation& what);

  // ---- ucx_rndv.cpp
  bool is_for_rendezvous(int to, const memory& from) const;

  // ---- window_revocation.cpp
  // Ends the use of an operation's memory as far as that needs nobody else. True: nothing here reads or writes it any more,
  // and what others have read of it is not taken for the message. The operation may go on without it.
  bool revoke(operation& what);
  // What can be told apart of the peer's signs of life.
  std::pair<std::uint64_t, std::uint64_t> heard_of(int rank) const;
  // The rank whose operation still uses a window that has ended; -1: none.
  int user_of_window(std::uint32_t id);

  // ---- barrier.cpp
  std::optional<status> advance_barrier();

  // ---- rma.cpp
  result<window::key_t> expose(const buffer& what);
  void end_window(std::uint32_t id);
  operation& put(const window::key_t& to, std::uint64_t offset, const buffer& from);
  operation& get(const window::key_t& from, std::uint64_t offset, const buffer& to);
  operation& atomic(const window::key_t& at, std::uint64_t offset, const atomic_request& what, std::uint64_t* before);

  std::mutex mutex_;
  const std::uint32_t epoch_;
  const messenger_options options_;
  const int rank_, size_;
  std::unique_ptr<copy::planner> own_planner_;
  memory_access memory_;
  crossovers limits_;
  messenger::statistics counts_;
  std::vector<peer_state> peers_;
  operation_pool operations_;
  matcher matcher_;
  std::unique_ptr<fabric> fabric_;
  const cu::driver_table* cuda_;
  bool do_all_calibrate_ = false;  // every process of the job asks for it

 private:
  friend class messenger;
  // engine.cpp
  void on_packet(const std::byte* whole, std::size_t bytes) override;
  void on_plain(const void* head, std::size_t head_bytes, const std::byte* payload, std::size_t bytes) override;
  void on_remote(const frame& head, remote_data what) override;
  void accept(const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  bool push(peer_state& to, packet& what);
  bool read_lane(peer_state& from);
  void take_from_lane(peer_state& from, const shm_lane::view& whole);
  bool advance_lanes();
  void on_lost(int rank, const char* reason) override;
  void dispatch(peer_state& from, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  status introduce(bootstrap& with);
  status open_fabric(int rank_on_node);
  status open_lanes(const std::vector<introduction>& known);
  status meet(std::size_t rank, const byte_string& text, const introduction& mine);
  void choose_gpu();
  void leave();
  void look_for_deaths();
  bool is_gone(const peer_state& of);
  void see_off();
  void fail_operations_of(int rank, const std::string& why);
  void fail_operation_of(operation& what, const std::string& why);
  void update_credit(peer_state& with, const frame& head);
  void tell_credit(peer_state& with);
  static void on_departed(packet& what, int code);
  static void on_control_sent(packet& what, int code);
  // tag_send_recv.cpp
  void start_send(operation& what);
  void send_to_self(operation& what);
  void send_waiting(peer_state& to);
  std::size_t eager_limit(const memory& from, const peer_state& to) const;
  void on_message(peer_state& from, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void on_reply(peer_state& from, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void deliver(operation& to, const std::byte* payload, std::size_t bytes, int outcome);
  void deliver_held(operation& to, operation& arrival);
  void deliver_from_self(operation& to, operation& send);
  void receive_arrival(operation& to, operation& arrival);
  void on_retract(peer_state& from, const frame& head);
  // rndv.cpp
  static int read_offer(packet& from, std::size_t offset, void* to, std::size_t bytes);
  void announce(operation& what, frame_kind kind);
  void receive_announced(operation& to, int from, const bulk_offer& offer, std::uint64_t bytes, std::uint64_t sender_op,
                         remote_data data);
  void on_start(peer_state& from, const frame& head, const start_order& order);
  void on_finish(const frame& head);
  void finish_send(operation& what);
  bulk_way choose_way(const operation& to, const peer_state& from, const bulk_offer& offer);
  void finish_receive(operation& of, int code, std::string message = {});
  void advance();
  std::optional<cu::pointer_info> describe_gpu(const memory& what, transfer_state& into);
  status begin_copy(chunk_copy& copy, const memory& of, std::uint64_t offset, void* chunk, std::size_t bytes, bool to_chunk,
                    touch how);
  std::optional<status> copy_ended(chunk_copy& copy);
  void order(operation& to, const start_order& what);
  // cuda_ipc_rndv.cpp
  bool start_ipc(operation& to, const bulk_offer& offer);
  bool begin_by_planner(operation& to);
  void submit_copies();
  void submit_list(std::span<operation* const> list);
  void advance_ipc(operation& of);
  // cma_rndv.cpp
  void start_pull(operation& to, const bulk_offer& offer);
  void pull_together();
  bool pull_some(operation& to, std::size_t most);
  void advance_pull(operation& of);
  static int read_process(pid_t pid, std::uint64_t from, void* to, std::size_t bytes);
  bool judge_read(operation& to, peer_state& from, int code);
  // window_revocation.cpp
  void finish_read(operation& of, int code, std::string message = {});
  void on_withdraw(peer_state& from, const frame& head);
  void on_check(const peer_state& from, const frame& head);
  void on_checked(const peer_state& from, const frame& head);
  bool revoke_unsent(operation& what);
  bool revoke_waiting(operation& what);
  bool revoke_send(operation& what);
  bool revoke_receive(operation& what);
  // barrier.cpp
  void on_barrier(peer_state& from, const frame& head);
  // shm_ring_rndv.cpp
  bool open_ring_out(peer_state& to);
  bool open_ring_in(peer_state& from, const bulk_offer& offer);
  void start_ring(operation& to, peer_state& from, const bulk_offer& offer);
  void advance_rings();
  bool fill_ring(peer_state& to);
  status begin_filling(operation& what, shm_ring& ring, std::uint64_t number, std::uint64_t bytes, chunk_copy& copy);
  void fill_by_threads(void* chunk, const void* from, std::size_t bytes);
  bool empty_ring(peer_state& from);
  void chunk_filled(std::uint64_t sender, const shm_ring::label& label, const status& done);
  int begin_emptying(peer_state& from, const shm_ring::label& label, shm_ring& ring, std::uint64_t number, chunk_copy& copy);
  void chunk_emptied(const shm_ring::label& label, const status& done);
  void drop_rings(peer_state& of);
  // ucx_rndv.cpp
  void start_network_send(operation& what, const start_order& order);
  void start_network_receive(operation& to, const peer_state& from, const bulk_offer& offer);
  void advance_network_send(operation& of);
  void advance_network_receive(operation& of);
  bool is_for_rendezvous(const operation& what) const { return is_for_rendezvous(what.peer, what.at); }
  void announce_in_place(operation& what, frame_kind kind);
  void on_let_go(operation& of, int code);
  void receive_in_place(operation& to);
  void on_parts(const peer_state& from, const frame& head);
  void post_parts(operation& of);
  void post_part(operation& of, transfer_state::part& part);
  bool fill_part(operation& of, transfer_state::part& part);
  void send_part(operation& of, transfer_state::part& part);
  void end_part(operation& of, transfer_state::part& part);
  void abandon_parts(operation& of);
  bool give_up(operation& of);
  void post_scratch(operation& of, transfer_state::part& part);
  static void on_part(bulk_part& what, int code, std::size_t bytes);
  // rma.cpp
  void on_put(peer_state& from, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void on_get(peer_state& from, const frame& head);
  void on_atomic(peer_state& from, const frame& head, const atomic_request& what);
  result<memory> window_part(std::uint64_t id, std::uint64_t offset, std::uint64_t bytes) const;
  result<std::uint64_t> apply(const memory& at, const atomic_request& what);
  std::optional<failure> refuses_window(const window::key_t& of, std::uint64_t offset, std::uint64_t bytes) const;

  death_watch deaths_;
  std::optional<shm_outbox> outbox_;
  std::vector<int> lane_peers_;
  std::optional<pinned_pool> pinned_;
  ipc_cache ipc_;
  std::unique_ptr<copy::worker_pool> fillers_;             // made by the first chunk that they share
  std::vector<std::unique_ptr<transfer_state>> given_up_;  // UCX has not let go of their parts
  remote_data arriving_;                                   // of the announcement that is looked at
  std::deque<std::unique_ptr<control_packet>> controls_;
  control_packet* free_control_ = nullptr;
  std::vector<std::pair<int, std::string>> lost_;
  std::vector<std::pair<int, std::uint64_t>> leaving_;      // until when what they sent is waited for
  intrusive_list<operation, &operation::in_order> moving_;  // all but rings
  std::vector<operation*> ready_;                           // of them, copies between GPUs that have not been queued
  std::size_t ready_bytes_ = 0;
  std::size_t copies_under_way_ = 0;  // between GPUs
  std::size_t pulls_ = 0;             // in moving_
  std::size_t pull_budget_ = 0;       // of this look
  std::vector<int> ring_peers_;       // with data under way through a ring
  std::map<std::uint32_t, memory> windows_;
  std::uint32_t next_window_ = 1;
  barrier_state barrier_;
  std::uint64_t barrier_frames_ = 0;  // under way: they must leave before this process turns to other things
  std::uint16_t gpu_ = 0;
  bool is_gpu_shared_ = false;
  bool is_gpu_used_ = false;  // by this process, as far as its messages show
  bool is_reading_ = false;   // lanes: more messages may be in them
  bool is_open_ = false;
  bool is_leaving_ = false;
  unsigned rounds_ = 0;
  std::uint64_t last_look_ns_ = 0;
};

}  // namespace pl::link
