// SPDX-License-Identifier: Apache-2.0
// An operation is the state behind a request. Operations come from a pool, so that the path of a message allocates nothing.
// Their number (index and generation) finds them when an answer arrives, and shows when they have ended meanwhile.
//
// Owns: the pool owns all operations until the messenger ends. Threads: the messenger's lock guards both.
// Errors: an operation keeps its errno value and its sentence; find() of an old number is null.
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

// deposit: the target's side of a put. word: that of the signal behind it. reply: the target's side of a get. failure: of
// failure_reports. arrival: of readmission.
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
  waiting,  // a receive not matched, a rendezvous send not started, a request not answered; an unexpected message not taken
  moving,   // data under way
  ended,
};

// The transport of a rendezvous message.
enum class transport_kind : std::uint8_t { none, shm, ucx, cuda_ipc, cma, dma };

struct match_entry;
struct messenger_context;
struct transfer_state;  // transfer.hpp

// What a short message uses comes first, in two cache lines.
struct operation {
  messenger_context* context = nullptr;
  operation_kind kind = operation_kind::send;
  operation_state state = operation_state::idle;
  tag_space space = tag_space::user;
  bool is_released = false;  // no request refers to it: it returns to the pool when it ends
  bool is_unpooled = false;  // not of the pool
  bool is_sending = false;   // its packet is with UCX, which may still read its memory
  bool is_plain = false;     // a receive that ended well, for which nothing behind `range` was used
  bool is_rendezvous = false;
  bool is_taken = false;
  bool is_orphaned = false;  // an unexpected message that was taken, of a process that another one has replaced
  int peer = kAnySource;
  int code = 0;
  std::uint32_t index = 0, generation = 1;
  std::uint64_t tag = 0, mask = kWholeTag;
  message_info info;
  match_entry* match_entries = nullptr;  // of tag_match.hpp, while it is posted or held there
  list_node<operation> in_queue;
  memory range;

  list_node<operation> in_order;
  std::uint64_t peer_op = 0;  // the other side's operation, once known
  std::uint64_t bytes = 0;    // of the message; the receiver takes `moved` of them
  std::uint64_t moved = 0;
  std::uint32_t window = 0;  // deposit, reply: whose memory it uses
  // A put and the operation on the word behind it (put_signal), or a deposit and its word: each other's numbers, until the
  // former has ended.
  std::uint64_t follower = 0, leader = 0;
  std::string message;  // of a failure
  std::uint64_t* before = nullptr;
  packet out;  // its owner: this operation

  // Unexpected message: its data, or its RTS, or the operation of this process that sends it. Word: its frame.
  // Put: the word that goes with it, or nothing.
  std::vector<std::byte> held;
  operation* self_send = nullptr;
  remote_data data;
  std::uint64_t cost = 0;  // counted against the sender's credit: of an unexpected message, and of a send that has left

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
  // Null: no operation with that number is in use.
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
