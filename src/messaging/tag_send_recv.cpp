// SPDX-License-Identifier: Apache-2.0
#include "messaging/tag_send_recv.hpp"

#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "messaging/live_messages.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kCostOfMessage = 64;  // memory of an unexpected message in addition to its bytes
// Limit of the unexpected messages to oneself that are copied. Beyond it the data stays in the sender's buffer.
constexpr std::size_t kMaxHeldOfSelf = 1 << 20;

constexpr std::uint64_t kCostOfRendezvous = 8 << 10;  // UCX keeps the packet, and thus a buffer of its queue

constexpr std::uint64_t cost_of(bool is_eager, bool is_remote, std::uint64_t bytes) {
  return kCostOfMessage + (is_eager ? bytes : is_remote ? kCostOfRendezvous : 0);
}

void give_back_cost(peer_state& source, const operation& unexpected) noexcept {
  source.taken_cost += unexpected.cost;
  source.held_cost -= unexpected.cost;
}

bool lacks_credit(const peer_state& destination, std::uint64_t cost) noexcept {
  return destination.sent_cost - destination.granted_cost + cost > destination.cost_limit;
}

int read_message(packet& outgoing, std::size_t offset, void* destination, std::size_t bytes) {
  auto& op = *static_cast<operation*>(outgoing.owner);
  const auto done = op.context->buffers.read(op.range, offset, destination, bytes, op.context->touch_of(op.range));
  if (!done) op.message = done.error().message;
  return done.code();
}

}  // namespace

// ---- Sending

operation& tagged_messages::isend(int destination_rank, const buffer& data, std::uint64_t tag, tag_space space) {
  constexpr auto kKind = operation_kind::send;
  if (auto refused = context_.refuses_peer(destination_rank))
    return context_.failed(kKind, refused->code, std::move(refused->message));
  auto range = context_.buffers.inspect(data);
  if (!range) return context_.failed(kKind, range.code(), range.error().message);
  auto& op = context_.operations.take(kKind);
  op.peer = destination_rank;
  op.tag = tag;
  op.space = space;
  op.out.head.space = static_cast<std::uint8_t>(space) & 1u;
  op.range = *range;
  op.bytes = range->bytes;
  op.info = {context_.rank, tag, range->bytes};
  if (destination_rank == context_.rank) send_to_self(op);
  else start_send(op);
  return op;
}

bool tagged_messages::send_at_once(int destination_rank, const buffer& data, std::uint64_t tag, tag_space space) {
  if (destination_rank < 0 || destination_rank >= context_.size || data.bytes > context_.limits.eager_host ||
      !context_.buffers.is_known_host(data))
    return false;
  auto& destination = context_.peer(destination_rank);
  const auto cost = cost_of(true, false, data.bytes);
  if (destination.is_dead || !destination.waiting_sends.is_empty() || lacks_credit(destination, cost)) return false;
  if (!channel_.send_at_once(destination, tag, space, copy::host_pointer(data.address), data.bytes)) return false;
  destination.sent_cost += cost;
  ++context_.counts.eager;
  g_live_eager.add(static_cast<std::int64_t>(data.bytes));
  return true;
}

void tagged_messages::start_send(operation& op) {
  auto& destination = context_.peer(op.peer);
  const bool is_eager = op.bytes <= channel_.eager_limit(op.range, destination);
  const auto cost = cost_of(is_eager, !is_eager && rendezvous_.moves_in_place(op.peer, op.range), op.bytes);
  // A send queues behind others even if its own cost fits: messages match in the order in which they were sent.
  const bool has_turn = op.state == operation_state::queued;
  // The few messages of ranks that come back do not wait until the program receives others.
  const bool is_reserved = op.space == tag_space::collective && op.tag >= kReservedTags;
  if (!is_reserved && ((!has_turn && !destination.waiting_sends.is_empty()) || lacks_credit(destination, cost))) {
    if (!has_turn) ++context_.counts.waiting_sends;
    op.state = operation_state::queued;
    destination.waiting_sends.push_back(&op);
    return;
  }
  destination.sent_cost += cost;
  op.cost = cost;
  op.state = operation_state::waiting;
  if (!is_eager) return rendezvous_.send_rts(op, frame_kind::rts);
  ++context_.counts.eager;
  g_live_eager.add(op.bytes);
  op.out.head.tag = op.tag;
  op.out.head.bytes = op.bytes;
  channel_.send_operation(op, frame_kind::eager, op.bytes, &read_message);
}

void tagged_messages::send_waiting(peer_state& destination) {
  while (operation* const first = destination.waiting_sends.first()) {
    const bool is_eager = first->bytes <= channel_.eager_limit(first->range, destination);
    const auto cost = cost_of(is_eager, !is_eager && rendezvous_.moves_in_place(first->peer, first->range), first->bytes);
    if (lacks_credit(destination, cost)) return;
    destination.waiting_sends.remove(first);
    start_send(*first);
  }
}

void tagged_messages::send_to_self(operation& op) {
  ++context_.counts.self;
  g_live_self.add(op.bytes);
  if (operation* const receive = matcher_of(op).take_receive(context_.rank, op.tag)) return deliver_from_self(*receive, op);
  auto& unexpected = context_.operations.take(operation_kind::unexpected);
  unexpected.peer = context_.rank;
  unexpected.space = op.space;
  unexpected.info = op.info;
  unexpected.bytes = op.bytes;
  ++context_.counts.unexpected;
  const bool fits = op.bytes <= thresholds::kMaxEager && context_.counts.unexpected_bytes + op.bytes <= kMaxHeldOfSelf;
  if (!fits) {
    unexpected.self_send = &op;
    op.peer_op = unexpected.id();
    context_.wake.note();
    return matcher_of(op).hold(unexpected);
  }
  unexpected.held.resize(op.bytes);
  const auto done = context_.buffers.read(op.range, 0, unexpected.held.data(), op.bytes, context_.touch_of(op.range));
  if (!done) {
    context_.operations.give_back(unexpected);
    return context_.end(op, done.code(), done.error().message);
  }
  context_.counts.unexpected_bytes += op.bytes;
  matcher_of(op).hold(unexpected);
  context_.end(op, 0);
}

// ---- Receiving

operation& tagged_messages::irecv(int source_rank, const buffer& data, std::uint64_t tag, std::uint64_t mask,
                                  tag_space space) {
  constexpr auto kKind = operation_kind::receive;
  const bool is_any = source_rank == kAnySource;
  if (!is_any && (source_rank < 0 || source_rank >= context_.size))
    return context_.failed(kKind, EINVAL, context_.refuses_peer(source_rank)->message);
  result<memory> range = memory();
  const bool is_host = context_.buffers.is_known_host(data);
  if (!is_host) range = context_.buffers.inspect(data);
  if (!range) return context_.failed(kKind, range.code(), range.error().message);
  auto& op = context_.operations.take(kKind);
  op.peer = source_rank;
  op.tag = tag;
  op.mask = mask;
  op.space = space;
  if (is_host) op.range.set_host(data.address, data.bytes);
  else op.range = *range;
  op.info = {source_rank, tag, 0};
  if (operation* const unexpected = matcher_of(space).find_unexpected(source_rank, tag, mask)) {
    matcher_of(space).remove_unexpected(*unexpected);
    receive_unexpected(op, *unexpected);
    return op;
  }
  const bool is_job_dead =
      context_.size > 1 && std::all_of(context_.peers.begin(), context_.peers.end(),
                                       [&](const peer_state& each) { return each.is_dead || each.rank == context_.rank; });
  if (is_any ? is_job_dead : context_.peer(source_rank).is_dead) {
    context_.end(op, ECONNRESET, is_any ? "every other process is gone" : format("rank %d is gone", source_rank));
    return op;
  }
  matcher_of(space).post(op);
  // The loss of a peer on another host is only detected on a connection.
  if (!is_any && source_rank != context_.rank && context_.peer(source_rank).sent == 0 &&
      !context_.peer(source_rank).is_same_node)
    channel_.send_control(source_rank, {.kind = frame_kind::hello});
  return op;
}

void tagged_messages::on_message(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes,
                                 int outcome) {
  const bool is_eager = head.kind == frame_kind::eager;
  if (!is_eager && bytes != sizeof(rts_body)) return;
  const std::uint64_t length = is_eager ? bytes : head.bytes;  // the received length, not the one that the sender claims
  const auto cost = cost_of(is_eager, head.is_remote != 0, length);
  if (operation* const receive = matchers_[head.space].take_receive(source.rank, head.tag)) {
    source.taken_cost += cost;
    receive->info = {source.rank, head.tag, length};
    if (is_eager) {
      context_.deliver(*receive, payload, bytes, outcome);
    } else {
      rts_body rts;
      std::memcpy(&rts, payload, sizeof rts);
      rendezvous_.start_receive(*receive, source.rank, rts, head.bytes, head.op, channel_.take_arriving());
    }
    return channel_.send_credit(source);
  }
  hold(source, head, payload, bytes, outcome, cost);
}

void tagged_messages::on_eager(peer_state& source, std::uint64_t tag, tag_space space, const std::byte* payload,
                               std::size_t bytes, int outcome) {
  operation* const receive = matcher_of(space).take_receive(source.rank, tag);
  if (receive == nullptr) {
    frame head;
    head.kind = frame_kind::eager;
    head.space = static_cast<std::uint8_t>(space) & 1u;
    head.tag = tag;
    head.bytes = bytes;
    return hold(source, head, payload, bytes, outcome, cost_of(true, false, bytes));
  }
  source.taken_cost += cost_of(true, false, bytes);
  receive->info = {source.rank, tag, bytes};
  if (!receive->range.is_device && outcome == 0 && bytes <= receive->range.bytes) {
    copy_short(copy::host_pointer(receive->range.address), payload, bytes);
    context_.end_plain(*receive);
  } else {
    context_.deliver(*receive, payload, bytes, outcome);
  }
  channel_.send_credit(source);
}

void tagged_messages::hold(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes, int outcome,
                           std::uint64_t cost) {
  // Twice the limit, because messages of ranks that come back do not wait for credit.
  if (source.held_cost + cost > 2 * context_.limits.unexpected_bytes)
    return channel_.report_lost(source, format("is lost: it sends more than the %zu bytes that may wait for a receive here",
                                               context_.limits.unexpected_bytes));
  source.held_cost += cost;
  auto& unexpected = context_.operations.take(operation_kind::unexpected);
  unexpected.peer = source.rank;
  unexpected.space = tag_space{head.space};
  unexpected.is_rendezvous = head.kind != frame_kind::eager;
  unexpected.bytes = unexpected.is_rendezvous ? head.bytes : bytes;
  unexpected.info = {source.rank, head.tag, unexpected.bytes};
  unexpected.peer_op = head.op;
  unexpected.cost = cost;
  unexpected.code = outcome;
  unexpected.held.assign(payload, payload + bytes);
  unexpected.data = channel_.take_arriving();
  context_.counts.unexpected_bytes += bytes;
  ++context_.counts.unexpected;
  matcher_of(unexpected).hold(unexpected);
}

void tagged_messages::receive_unexpected(operation& receive, operation& unexpected) {
  receive.info = unexpected.info;
  auto& source = context_.peer(unexpected.peer);
  if (!unexpected.is_orphaned) give_back_cost(source, unexpected);
  if (unexpected.self_send != nullptr) {
    deliver_from_self(receive, *unexpected.self_send);
  } else if (unexpected.is_rendezvous) {
    rts_body rts;
    std::memcpy(&rts, unexpected.held.data(), sizeof rts);
    context_.counts.unexpected_bytes -= unexpected.held.size();
    receive.peer = unexpected.peer;
    if (source.is_dead || unexpected.is_orphaned)
      context_.end(receive, ECONNRESET, format("rank %d is gone", unexpected.peer));
    else
      rendezvous_.start_receive(receive, unexpected.peer, rts, unexpected.bytes, unexpected.peer_op,
                                std::move(unexpected.data));
  } else {
    context_.counts.unexpected_bytes -= unexpected.held.size();
    context_.deliver(receive, unexpected.held.data(), unexpected.held.size(), unexpected.code);
  }
  context_.operations.give_back(unexpected);
  if (source.rank != context_.rank && !source.is_dead) channel_.send_credit(source);
}

void tagged_messages::deliver_from_self(operation& receive, operation& send) {
  receive.info = send.info;
  const auto fits = std::min(send.range.bytes, receive.range.bytes);
  const auto done = context_.buffers.move(receive.range, send.range, fits);
  context_.end(send, done.code(), done ? "" : done.error().message);
  if (!done) return context_.end(receive, done.code(), done.error().message);
  if (send.range.bytes > fits)
    return context_.end(receive, EMSGSIZE,
                        format("a message of %zu bytes for a buffer of %zu", send.range.bytes, receive.range.bytes));
  context_.end(receive, 0);
}

// ---- Matched probe

operation* tagged_messages::find_message(int source_rank, std::uint64_t tag, std::uint64_t mask, tag_space space,
                                         bool take) {
  operation* const found = matcher_of(space).find_unexpected(source_rank, tag, mask);
  if (found != nullptr && take) {
    matcher_of(space).remove_unexpected(*found);
    found->is_taken = true;
  }
  return found;
}

operation& tagged_messages::receive_taken(operation& unexpected, const buffer& data) {
  auto range = context_.buffers.inspect(data);
  if (!range) {
    discard(unexpected);
    return context_.failed(operation_kind::receive, range.code(), range.error().message);
  }
  auto& op = context_.operations.take(operation_kind::receive);
  op.peer = unexpected.peer;
  op.range = *range;
  receive_unexpected(op, unexpected);
  return op;
}

// Receives into an empty buffer, so that the sender ends successfully.
void tagged_messages::discard(operation& unexpected) {
  auto& op = context_.operations.take(operation_kind::receive);
  op.peer = unexpected.peer;
  op.range = {};
  receive_unexpected(op, unexpected);
  context_.release(op);
}

// ---- Cancelling

status tagged_messages::cancel(operation& op) {
  if (op.has_ended()) return {};
  const failure busy{EBUSY, "the operation is in progress and cannot be cancelled: wait for its end"};
  if (op.kind == operation_kind::receive && op.state == operation_state::waiting) {
    matcher_of(op).remove_receive(op);
  } else if (op.kind == operation_kind::send && op.state == operation_state::queued) {
    context_.peer(op.peer).waiting_sends.remove(&op);
  } else if (op.kind == operation_kind::send && op.peer == context_.rank) {
    operation* const unexpected = context_.operations.find(op.peer_op);
    if (unexpected == nullptr || unexpected->is_taken) return busy;
    matcher_of(*unexpected).remove_unexpected(*unexpected);
    context_.operations.give_back(*unexpected);
  } else {
    // RTS sent, transfer not started: the receiver drops it unless a receive has taken it, and answers which.
    const bool is_rendezvous =
        op.kind == operation_kind::send && op.state == operation_state::waiting && op.transfer != nullptr;
    if (is_rendezvous && !op.transfer->is_retracted) {
      op.transfer->is_retracted = true;
      channel_.send_control(op.peer, {.kind = frame_kind::retract, .is_remote = op.out.head.is_remote, .op = op.id()});
    }
    return busy;
  }
  context_.end(op, ECANCELED, "cancelled");
  return {};
}

void tagged_messages::on_retract(peer_state& source, const frame& head) {
  operation* found = nullptr;
  for (auto& matcher : matchers_)
    if (found == nullptr) found = matcher.find_rendezvous(source.rank, head.op);
  // UCX's completion alone does not show the sender whether the message was received or dropped.
  if (found == nullptr && head.is_remote != 0)
    channel_.send_control(source.rank, {.kind = frame_kind::ats, .peer_op = head.op});
  if (found == nullptr) return;
  drop_rts(source, *found);
  channel_.send_control(source.rank, {.kind = frame_kind::ats, .code = ECANCELED, .peer_op = head.op});
}

void tagged_messages::drop_rts(peer_state& source, operation& unexpected) {
  matcher_of(unexpected).remove_unexpected(unexpected);
  give_back_cost(source, unexpected);
  context_.counts.unexpected_bytes -= unexpected.held.size();
  context_.operations.give_back(unexpected);
}

void tagged_messages::lose_sender(operation& unexpected) {
  if (!unexpected.is_rendezvous || unexpected.is_taken) return;
  matcher_of(unexpected).remove_unexpected(unexpected);
  context_.counts.unexpected_bytes -= unexpected.held.size();
  unexpected.state = operation_state::ended;
  context_.operations.give_back(unexpected);
}

void tagged_messages::forget_sender(int rank) {
  context_.operations.for_each([&](operation& each) {
    if (each.kind != operation_kind::unexpected || each.peer != rank) return;
    each.is_orphaned = true;
    if (each.is_taken) return;
    matcher_of(each).remove_unexpected(each);
    context_.counts.unexpected_bytes -= each.held.size();
    context_.operations.give_back(each);
  });
}

// Receives each message into an empty buffer, so that a waiting sender succeeds.
void tagged_messages::drop_messages(tag_space space, const std::function<bool(std::uint64_t)>& is_unwanted) {
  std::vector<operation*> found;
  context_.operations.for_each([&](operation& each) {
    if (each.kind == operation_kind::unexpected && each.space == space && !each.is_taken && is_unwanted(each.info.tag))
      found.push_back(&each);
  });
  for (operation* const each : found) {
    matcher_of(space).remove_unexpected(*each);
    each->is_taken = true;
    discard(*each);
  }
}

}  // namespace pl::messaging
