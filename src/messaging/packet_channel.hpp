// SPDX-License-Identifier: Apache-2.0
// Sends frames to every peer and receives theirs, in order for each peer: through the pair's shm queue on one node, and
// through UCX between nodes.
//
// Owns: the shm queues, the UCX fabric, packets without an operation, and frames that arrived too early.
// Threads: the messenger's lock guards all calls; UCX's callbacks run inside advance().
// Errors: a packet that cannot be sent ends with an errno value at its done(). A lost connection is reported to peer_watch.
// Speed: a small message passes here once at each end. No virtual call, lock or allocation on the way through a shm queue.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "messaging/messenger_context.hpp"
#include "messaging/peer_watch.hpp"
#include "messaging/transport/shm_queue.hpp"
#include "messaging/transport/ucx_fabric.hpp"

namespace pl::messaging {

struct messenger_core;
class packet_channel;

// A packet that belongs to no operation.
struct control_packet : packet {
  std::array<std::byte, 64> inline_data;
  packet_channel* channel = nullptr;
  control_packet* next = nullptr;
};

class packet_channel final : public network::listener {
 public:
  // `receiver`: its dispatch() gets every frame.
  packet_channel(messenger_context& context, peer_watch& watch, messenger_core& receiver)
      : context_(context), watch_(watch), receiver_(receiver) {}
  packet_channel(const packet_channel&) = delete;
  packet_channel& operator=(const packet_channel&) = delete;

  // ---- Opening, and the end
  result<shm_queue_set::name> make_queues();
  // For a rank with a new process: makes new shared memory, to which the old process has no access. Closes the old queues.
  result<shm_queue_set::name> renew_queues(peer_state& remote);
  // Opens both queues of a peer. False: its memory cannot be accessed, so it counts as remote.
  result<bool> open_queues(peer_state& remote, const shm_queue_set::name& its_queues);
  // `rank_on_node` selects the rail of a process that uses only one.
  status open_fabric(int rank_on_node);
  // Notifies the peers, and waits up to a second for packets in progress.
  void leave();
  // Closes every queue and connection. The memory of parts that UCX still holds must be valid until then.
  void close_all();
  // Null: every peer is on this node.
  network* fabric() const noexcept { return fabric_.get(); }
  bool has_remote_peers() const noexcept {
    for (const auto& each : context_.peers)
      if (each.rank != context_.rank && !each.is_same_node && !each.is_dead) return true;
    return false;
  }
  bool has_local_peers() const noexcept { return !queue_peers_.empty(); }

  // ---- Sleeping (wakeup.hpp)
  // Wakes a peer of this node if it sleeps, after something was published for it in shared memory.
  void wake_peer(peer_state& remote) {
    if (remote.queue_out.is_open() && remote.queue_out.waiter() != 0) ring(remote);
  }
  // Writes to the queues of all peers what this process sleeps for; false: it is awake.
  void mark_sleeping(bool is_sleeping);
  // ENOSYS: this machine has no barrier that makes peers see the marks.
  status order_marks() const;

  // ---- Sending. The caller owns the packet and must not change it until done().
  void send_packet(int rank, packet& outgoing);
  // Sends op.out. `read`: see packet. Without `done`, the operation ends when the packet fails, or when an eager packet is
  // sent.
  void send_operation(operation& op, frame_kind kind, std::size_t payload,
                      int (*read)(packet&, std::size_t, void*, std::size_t),
                      void (*done)(packet&, int) = &packet_channel::on_operation_sent);
  // The part of done() that all operations share. False: the operation had already ended.
  static bool note_sent(operation& op);
  static void on_operation_sent(packet& outgoing, int code);
  // Sends an eager message of host memory. False: the queue has no room, or other packets wait.
  bool send_at_once(peer_state& destination, std::uint64_t tag, tag_space space, const void* data, std::size_t bytes) {
    if (!destination.queue_out.is_open() || !destination.unsent.empty()) return false;
    const compact_frame brief{.space = static_cast<std::uint8_t>(space),
                              .gpu = context_.gpu_use.last_used(),
                              .tag = tag,
                              .credit = destination.taken_cost};
    if (!destination.queue_out.put(brief, data, bytes)) return false;
    destination.reported_cost = destination.taken_cost;
    ++destination.sent;
    wake_peer(destination);
    return true;
  }
  // Sends a frame without an operation, with at most 64 bytes of payload. Dropped if the peer is lost.
  void send_control(int rank, frame head, const void* data = nullptr, std::size_t bytes = 0);
  // Returns credit to the peer, when there is enough of it for a frame.
  void send_credit(peer_state& remote);
  // Number of barrier frames that have not been sent.
  std::uint64_t barrier_frames() const noexcept { return barrier_frames_; }
  // Messages up to this size are sent with their frame.
  std::size_t eager_limit(const memory& source, const peer_state& destination) const;

  // ---- Receiving
  // Makes progress in both directions. True: something was sent or received.
  bool advance(bool with_network) {
    const bool has_moved = advance_queues();
    return (fabric_ != nullptr && with_network && fabric_->progress() != 0) || has_moved;
  }
  void reap_closed();
  // The peer's queue is being read, so more messages may follow at once.
  bool is_reading() const noexcept { return is_reading_; }
  // UCX's handle of the message whose frame is being dispatched, if it has one.
  remote_data take_arriving() { return std::move(arriving_); }
  // Receives the complete packets that a lost peer had sent.
  void drain(peer_state& source);
  // The peer violates the protocol: it counts as lost from the next round of progress on.
  void report_lost(const peer_state& source, std::string reason) { watch_.report(source.rank, std::move(reason)); }
  // Ends everything that was to be sent to a lost peer.
  void close(peer_state& destination);

 private:
  void on_packet(const std::byte* whole, std::size_t bytes) override;
  void on_plain(const void* head, std::size_t head_bytes, const std::byte* payload, std::size_t bytes) override;
  void on_remote(const frame& head, remote_data data) override;
  void on_lost(int rank, const char* reason) override;
  bool has_left(int rank) const override { return context_.peer(rank).has_left; }
  status open_rails(const ucx_fabric::options& wanted, const std::vector<std::string>& rails);
  void accept(const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  void accept_early(peer_state& source);
  bool push(peer_state& destination, packet& outgoing);
  void ring(peer_state& remote);
  void ring_again();
  bool read_queue(peer_state& source);
  void take_from_queue(peer_state& source, const shm_queue::view& whole);
  bool advance_queues();
  control_packet& take_control();
  static void on_control_sent(packet& outgoing, int code);

  messenger_context& context_;
  peer_watch& watch_;
  messenger_core& receiver_;
  std::unique_ptr<network> fabric_;
  std::optional<shm_queue_set> send_queues_;
  std::map<int, shm_queue_set> renewed_queues_;  // by rank: instead of its part of `send_queues_`
  std::vector<int> queue_peers_;
  bool has_failed_wakeup_ = false;
  remote_data arriving_;
  std::deque<std::unique_ptr<control_packet>> controls_;
  control_packet* free_control_ = nullptr;
  std::uint64_t barrier_frames_ = 0;
  bool is_reading_ = false;
  bool is_leaving_ = false;
};

}  // namespace pl::messaging
