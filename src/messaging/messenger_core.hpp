// SPDX-License-Identifier: Apache-2.0
// The implementation behind `messenger`. One lock guards all of it. Its member functions are spread over these files:
//   messenger_core.cpp                 opening, peers, packets in order, progress, loss of a peer
//   tag_send_recv.cpp                  tagged messages: send, receive, matching, cancel
//   rndv.cpp                           rendezvous: choice of the transport, start and end of a transfer
//   transport/shm_ring_rndv.cpp        ... through a ring in shared memory
//   transport/cma_rndv.cpp             ... by reading the sender's host memory (cross memory attach)
//   transport/cuda_ipc_rndv.cpp        ... from GPU to GPU through CUDA IPC
//   transport/ucx_rndv.cpp             ... through UCX
//   rma.cpp                            windows: put, get, atomics
//   window_revocation.cpp              memory that its owner takes back while a transport uses it
//   barrier.cpp                        barriers
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
#include "messaging/messenger_context.hpp"
#include "messaging/packet_channel.hpp"
#include "messaging/peer_watch.hpp"
#include "messaging/request_state.hpp"
#include "messaging/rndv.hpp"
#include "messaging/tag_match.hpp"
#include "messaging/thresholds.hpp"
#include "messaging/transport/cuda_ipc_cache.hpp"
#include "messaging/transport/pinned_pool.hpp"
#include "messaging/transport/shm_queue.hpp"
#include "messaging/transport/shm_ring.hpp"
#include "messaging/transport/ucx_fabric.hpp"

namespace pl::messaging {

struct atomic_request {
  atomic_op op = atomic_op::add;
  std::uint64_t operand = 0, compare = 0;
};

// The current barrier. After a time-out the next call continues it.
struct barrier_state {
  std::uint64_t number = 0;  // of this one, or of the last
  int distance = 1;          // of this round: 1, 2, 4 ...
  bool is_open = false;
  bool has_sent = false;     // in this round
  bool is_attended = false;  // a thread waits for it
};

constexpr const char* kTakenBack = "its sender has taken the message back (a time-out there, or it was dropped)";

struct messenger_core {
  messenger_core(const cu::driver_table* cuda, const messenger_options& wanted, int rank, int size);
  ~messenger_core();

  // ---- messenger_core.cpp
  status open(bootstrap& group);
  // Without the network where a caller polls more often than UCX needs.
  bool progress(bool with_network = true);
  void mark_lost(int rank, const std::string& why);
  void dispatch(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  // Makes progress until `done` yields a status.
  template <class Done>
  status wait_until(Done done, std::chrono::milliseconds limit);
  // Waits, for a bounded time, until no transport uses the operation's memory any more.
  void reclaim_memory(operation& op);

  // ---- tag_send_recv.cpp
  operation& isend(int destination_rank, const buffer& data, std::uint64_t tag);
  operation& irecv(int source_rank, const buffer& data, std::uint64_t tag, std::uint64_t mask);
  operation* find_message(int source_rank, std::uint64_t tag, std::uint64_t mask, bool take);
  operation& receive_taken(operation& unexpected, const buffer& data);
  void discard(operation& unexpected);
  status cancel(operation& op);

  // ---- ucx_rndv.cpp
  bool uses_ucx_rendezvous(int destination_rank, const memory& source) const;

  // ---- window_revocation.cpp
  // Stops this process's use of the operation's memory. True: nothing in this process reads or writes it any more, and a
  // peer discards what it has read of it since. The operation itself may continue without the memory.
  bool revoke(operation& op);
  // A rank whose operation still uses the ended window; -1: none.
  int window_user(std::uint32_t id);

  // ---- barrier.cpp
  std::optional<status> advance_barrier();

  // ---- rma.cpp
  result<window::key_t> expose(const buffer& data);
  void end_window(std::uint32_t id);
  operation& put(const window::key_t& key, std::uint64_t offset, const buffer& data);
  operation& get(const window::key_t& key, std::uint64_t offset, const buffer& data);
  operation& atomic(const window::key_t& key, std::uint64_t offset, const atomic_request& request, std::uint64_t* before);

  std::mutex mutex_;
  messenger_context context_;
  peer_watch watch_;
  packet_channel channel_;
  tag_matcher matcher_;
  bool do_all_calibrate_ = false;  // every process of the job asks for it

 private:
  friend class messenger;
  // messenger_core.cpp
  void fail_operations_of(int rank, const std::string& why);
  void fail_operation_of(operation& op, const std::string& why);
  void update_credit(peer_state& remote, const frame& head);
  // tag_send_recv.cpp
  void start_send(operation& op);
  void send_to_self(operation& op);
  void send_waiting(peer_state& destination);
  void on_message(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void on_reply(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void deliver_from_self(operation& receive, operation& send);
  void receive_unexpected(operation& receive, operation& unexpected);
  void on_retract(peer_state& source, const frame& head);
  // rndv.cpp
  static int read_rts(packet& outgoing, std::size_t offset, void* destination, std::size_t bytes);
  void send_rts(operation& op, frame_kind kind);
  void receive_rendezvous(operation& receive, int source_rank, const rts_body& rts, std::uint64_t bytes,
                          std::uint64_t sender_op, remote_data data);
  void on_rtr(peer_state& source, const frame& head, const rtr_body& order);
  void on_ats(const frame& head);
  void finish_send(operation& op);
  transport_kind choose_transport(const operation& receive, const peer_state& source, const rts_body& rts);
  void finish_receive(operation& op, int code, std::string message = {});
  void advance();
  std::optional<cu::pointer_info> describe_gpu(const memory& range, transfer_state& into);
  status begin_copy(chunk_copy& copy, const memory& range, std::uint64_t offset, void* chunk, std::size_t bytes,
                    bool to_chunk, touch access);
  std::optional<status> copy_ended(chunk_copy& copy);
  void send_rtr(operation& receive, const rtr_body& request);
  // cuda_ipc_rndv.cpp
  bool start_cuda_ipc(operation& receive, const rts_body& rts);
  bool begin_by_planner(operation& receive);
  void submit_copies();
  void submit_list(std::span<operation* const> list);
  void advance_cuda_ipc(operation& op);
  // cma_rndv.cpp
  void start_cma(operation& receive, const rts_body& rts);
  void read_together();
  bool read_some_bytes(operation& receive, std::size_t most);
  void advance_cma(operation& op);
  static int read_process(pid_t pid, std::uint64_t address, void* destination, std::size_t bytes);
  bool classify_read_error(operation& receive, peer_state& source, int code);
  // window_revocation.cpp
  void finish_read(operation& op, int code, std::string message = {});
  void on_withdraw(peer_state& source, const frame& head);
  void on_check(const peer_state& source, const frame& head);
  void on_checked(const peer_state& source, const frame& head);
  bool revoke_unsent(operation& op);
  bool revoke_waiting(operation& op);
  bool revoke_send(operation& op);
  bool revoke_receive(operation& op);
  // barrier.cpp
  void on_barrier(peer_state& source, const frame& head);
  // shm_ring_rndv.cpp
  bool open_ring_out(peer_state& destination);
  bool open_ring_in(peer_state& source, const rts_body& rts);
  void start_ring(operation& receive, peer_state& source, const rts_body& rts);
  void advance_rings();
  bool fill_ring(peer_state& destination);
  status begin_filling(operation& op, shm_ring& ring, std::uint64_t number, std::uint64_t bytes, chunk_copy& copy);
  void fill_by_threads(void* chunk, const void* source, std::size_t bytes);
  bool empty_ring(peer_state& source);
  void chunk_filled(std::uint64_t sender, const shm_ring::label& label, const status& done);
  int begin_emptying(peer_state& source, const shm_ring::label& label, shm_ring& ring, std::uint64_t number,
                     chunk_copy& copy);
  void chunk_emptied(const shm_ring::label& label, const status& done);
  void drop_rings(peer_state& remote);
  // ucx_rndv.cpp
  void start_ucx_send(operation& op, const rtr_body& order);
  void start_ucx_receive(operation& receive, const peer_state& source, const rts_body& rts);
  void advance_ucx_send(operation& op);
  void advance_ucx_receive(operation& op);
  bool uses_ucx_rendezvous(const operation& op) const { return uses_ucx_rendezvous(op.peer, op.range); }
  void send_rts_in_place(operation& op, frame_kind kind);
  static void on_in_place_sent(packet& outgoing, int code);
  void on_in_place_done(operation& op, int code);
  void receive_in_place(operation& receive);
  void on_parts(const peer_state& source, const frame& head);
  void post_parts(operation& op);
  void post_part(operation& op, transfer_state::part& part);
  bool fill_part(operation& op, transfer_state::part& part);
  void send_part(operation& op, transfer_state::part& part);
  void end_part(operation& op, transfer_state::part& part);
  void abandon_parts(operation& op);
  bool give_up(operation& op);
  void post_scratch(operation& op, transfer_state::part& part);
  static void on_part(ucx_part& part, int code, std::size_t bytes);
  // rma.cpp
  void on_put(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void on_get(peer_state& source, const frame& head);
  void on_atomic(peer_state& source, const frame& head, const atomic_request& request);
  result<memory> window_part(std::uint64_t id, std::uint64_t offset, std::uint64_t bytes) const;
  result<std::uint64_t> apply(const memory& range, const atomic_request& request);
  std::optional<failure> refuses_window(const window::key_t& key, std::uint64_t offset, std::uint64_t bytes) const;

  std::optional<pinned_pool> pinned_;
  cuda_ipc_cache ipc_;
  std::unique_ptr<copy::worker_pool> fillers_;              // made by the first chunk that they share
  std::vector<std::unique_ptr<transfer_state>> given_up_;   // UCX has not let go of their parts
  intrusive_list<operation, &operation::in_order> moving_;  // all but rings
  std::vector<operation*> ready_;                           // of them, copies between GPUs that have not been queued
  std::size_t ready_bytes_ = 0;
  std::size_t copies_under_way_ = 0;  // between GPUs
  std::size_t cma_receives_ = 0;      // in moving_
  std::size_t cma_budget_ = 0;        // of this look
  std::vector<int> ring_peers_;       // with data under way through a ring
  std::map<std::uint32_t, memory> windows_;
  std::uint32_t next_window_ = 1;
  barrier_state barrier_;
  bool is_open_ = false;
  unsigned rounds_ = 0;
};

}  // namespace pl::messaging
