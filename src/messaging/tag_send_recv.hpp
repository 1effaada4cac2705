// SPDX-License-Identifier: Apache-2.0
// Tagged messages: eager and rendezvous sends, receives, matching and cancellation.
//
// Owns: posted receives and unexpected messages (tag_match.hpp), and the sends that wait for a peer's credit.
// Threads: the messenger's lock guards all calls.
// Errors: rejected arguments return an operation that has failed (EINVAL, ECONNRESET); later errors end the operation.
// Speed: an eager message through a shm queue makes no virtual call, takes no further lock and allocates nothing here.
#pragma once

#include <functional>

#include "messaging/packet_channel.hpp"
#include "messaging/rndv.hpp"
#include "messaging/tag_match.hpp"

namespace pl::messaging {

class tagged_messages {
 public:
  tagged_messages(messenger_context& context, packet_channel& channel, rendezvous& transfers)
      : context_(context), channel_(channel), rendezvous_(transfers) {}

  operation& isend(int destination_rank, const buffer& data, std::uint64_t tag, tag_space space);
  // Sends an eager message of host memory to a process of this node without an operation. False: nothing was sent, use
  // isend().
  bool send_at_once(int destination_rank, const buffer& data, std::uint64_t tag, tag_space space);
  operation& irecv(int source_rank, const buffer& data, std::uint64_t tag, std::uint64_t mask, tag_space space);
  // The unexpected message that such a receive would match; null: none. `take`: also removes it from the matching.
  operation* find_message(int source_rank, std::uint64_t tag, std::uint64_t mask, tag_space space, bool take);
  operation& receive_taken(operation& unexpected, const buffer& data);
  void discard(operation& unexpected);
  // EBUSY: it is too late, or the peer must answer first.
  status cancel(operation& op);

  void on_message(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome);
  // An eager message from a shm queue.
  void on_eager(peer_state& source, std::uint64_t tag, tag_space space, const std::byte* payload, std::size_t bytes,
                int outcome);
  void on_retract(peer_state& source, const frame& head);
  // Starts the sends for which the peer's credit now suffices.
  void send_waiting(peer_state& destination);

  // Removes a posted receive from the matching.
  void unpost(operation& receive) { matcher_of(receive).remove_receive(receive); }
  // Forgets the RTS of a message that its sender has taken back, and gives its credit back.
  void drop_rts(peer_state& source, operation& unexpected);
  // Its sender is lost: complete messages stay receivable.
  void lose_sender(operation& unexpected);

  // A new process has this rank: drops the old one's messages, and detaches those that a probe has taken.
  void forget_sender(int rank);
  // Drops unexpected messages for which `is_unwanted(tag)` holds.
  void drop_messages(tag_space space, const std::function<bool(std::uint64_t tag)>& is_unwanted);

  // Number of comparisons of receives with messages since the start.
  std::uint64_t comparisons() const noexcept { return matchers_[0].comparisons() + matchers_[1].comparisons(); }

 private:
  tag_matcher& matcher_of(tag_space space) { return matchers_[static_cast<std::size_t>(space)]; }
  tag_matcher& matcher_of(const operation& op) { return matcher_of(op.space); }
  void start_send(operation& op);
  void send_to_self(operation& op);
  void deliver_from_self(operation& receive, operation& send);
  void receive_unexpected(operation& receive, operation& unexpected);
  void hold(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome,
            std::uint64_t cost);

  messenger_context& context_;
  packet_channel& channel_;
  rendezvous& rendezvous_;
  std::array<tag_matcher, kTagSpaces> matchers_;
};

}  // namespace pl::messaging
