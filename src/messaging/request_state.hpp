// SPDX-License-Identifier: Apache-2.0
// An operation is the state of a request. Operations come from a pool, so that sending a message allocates no memory. An
// answer finds its operation by number (index and generation), which also shows that the operation has already ended.
//
// Owns: the pool owns all operations until the messenger ends. Threads: the messenger's lock guards both.
// Errors: an operation stores an errno value and a message; find() returns null for an old number.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "messaging/intrusive_list.hpp"
#include "messaging/memory_access.hpp"
#include "messaging/messenger.hpp"
#include "messaging/transport/ucx_fabric.hpp"

namespace pl::messaging {

// deposit: a put at its target. word: the signal of a put at its target. reply: a get at its target. failure: used by
// failure_reports. arrival: used by readmission.
enum class operation_kind : std::uint8_t {
  send,
  receive,
  unexpected,
  put,
  get,
  atomic,
  deposit,
  word,
  reply,
  failure,
  arrival
};

enum class operation_state : std::uint8_t {
  idle,     // in the pool
  queued,   // a send that waits for credit
  waiting,  // unmatched receive, rendezvous send that has not started, unanswered request, or unexpected message
  moving,   // data is being transferred
  ended,
};

// The transport of a rendezvous message.
enum class transport_kind : std::uint8_t { none, shm, ucx, cuda_ipc, cma, dma };

struct match_entry;
struct messenger_context;
struct transfer_state;  // transfer.hpp

// The members that a short message uses come first, in two cache lines.
struct operation {
  messenger_context* context = nullptr;
  operation_kind kind = operation_kind::send;
  operation_state state = operation_state::idle;
  tag_space space = tag_space::user;
  bool is_released = false;  // no request refers to it: it returns to the pool when it ends
  bool is_unpooled = false;  // not from the pool
  bool is_sending = false;   // UCX has its packet, and may still read its memory
  bool is_plain = false;     // a receive that succeeded and used no member after `range`
  bool is_rendezvous = false;
  bool is_taken = false;
  bool is_orphaned = false;  // an unexpected message that was taken, from a process whose rank now has a new process
  int peer = kAnySource;
  int code = 0;
  std::uint32_t index = 0, generation = 1;
  std::uint64_t tag = 0, mask = kWholeTag;
  message_info info;
  match_entry* match_entries = nullptr;  // used by tag_match.hpp while the operation is posted or held
  list_node<operation> in_queue;
  memory range;

  list_node<operation> in_order;
  std::uint64_t peer_op = 0;  // operation at the other side, once known
  std::uint64_t bytes = 0;    // size of the message, of which the receiver takes `moved` bytes
  std::uint64_t moved = 0;
  std::uint32_t window = 0;  // deposit, reply: the window whose memory is used
  // Link a put with the operation on its word (put_signal), or a deposit with its word, by number until the first has ended.
  std::uint64_t follower = 0, leader = 0;
  std::string message;  // of the failure
  std::uint64_t* before = nullptr;
  packet out;  // its owner is this operation

  // Unexpected message: its data or RTS in `held`, or the sending operation of this process in `self_send`. Word: its frame.
  // Put: the word that is sent with it, if any.
  std::vector<std::byte> held;
  operation* self_send = nullptr;
  remote_data data;
  std::uint64_t cost = 0;  // counted against the sender's credit; of an unexpected message, or of a send after it was sent

  std::unique_ptr<transfer_state> transfer;

  std::uint64_t id() const noexcept { return std::uint64_t{generation} << 32 | index; }
  bool has_ended() const noexcept { return state == operation_state::ended; }
};

class operation_pool {
 public:
  explicit operation_pool(messenger_context* context);
  ~operation_pool();
  operation& take(operation_kind kind) {
    if (free_ == nullptr) grow();
    operation& taken = *free_;
    free_ = taken.in_queue.next;
    taken.in_queue = {};
    taken.kind = kind;
    taken.state = operation_state::waiting;
    ++in_use_;
    return taken;
  }
  void give_back(operation& op) noexcept {
    if (!std::exchange(op.is_plain, false)) clear(op);
    op.state = operation_state::idle;
    op.is_released = false;
    ++op.generation;
    op.in_queue.next = free_;
    free_ = &op;
    --in_use_;
  }
  // Returns the operation with this number; null: it is no longer in use.
  operation* find(std::uint64_t id) const noexcept;
  std::size_t in_use() const noexcept { return in_use_; }
  template <class Body>
  void for_each(Body body) {
    for (auto& block : blocks_)
      for (std::size_t i = 0; i < kBlock; ++i)
        if (block[i].state != operation_state::idle) body(block[i]);
  }

 private:
  static constexpr std::size_t kBlock = 256;
  void grow();
  static void clear(operation& op) noexcept;
  std::vector<std::unique_ptr<operation[]>> blocks_;
  messenger_context* home_;
  operation* free_ = nullptr;  // through in_queue.next
  std::size_t in_use_ = 0;
};

}  // namespace pl::messaging
