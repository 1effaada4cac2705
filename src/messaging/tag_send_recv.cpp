// SPDX-License-Identifier: Apache-2.0
// Messages: what is sent with its data and what is only announced, and which receive gets what.
#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::link {
namespace {

constexpr std::uint64_t kCostOfMessage = 64;  // what an unexpected one takes here beside its bytes
// What a process may have sent to itself without a receive before the data stays in the sender's buffer.
constexpr std::size_t kMostHeldOfSelf = 1 << 20;

constexpr std::uint64_t kCostOfRendezvous = 8 << 10;  // UCX keeps the packet in which it came, and so a buffer of its queue

constexpr std::uint64_t cost_of(bool is_eager, bool is_remote, std::uint64_t bytes) {
  return kCostOfMessage + (is_eager ? bytes : is_remote ? kCostOfRendezvous : 0);
}

int read_message(packet& from, std::size_t offset, void* to, std::size_t bytes) {
  auto& what = *static_cast<operation*>(from.owner);
  const auto done = what.home->memory_.read(what.at, offset, to, bytes, what.home->touch_of(what.at));
  if (!done) what.message = done.error().message;
  return done.code();
}

}  // namespace

std::size_t engine::eager_limit(const memory& from, const peer_state& to) const {
  if (!from.is_device && to.is_same_node) return limits_.eager_host;
  if (!from.is_device) return fabric_->has_rdma_lane(to.rank) ? limits_.eager_host_rdma : limits_.eager_host_network;
  if (is_gpu_shared_) return limits_.eager_shared_gpu;
  return to.is_same_node ? limits_.eager_device : limits_.eager_device_network;
}

// ---- Sending

operation& engine::isend(int to, const buffer& from, std::uint64_t tag) {
  constexpr auto kKind = operation_kind::send;
  if (auto refused = refuses_peer(to)) return failed(kKind, refused->code, std::move(refused->message));
  auto at = memory_.look(from);
  if (!at) return failed(kKind, at.code(), at.error().message);
  auto& what = operations_.take(kKind);
  what.peer = to;
  what.tag = tag;
  what.at = *at;
  what.bytes = at->bytes;
  what.info = {rank_, tag, at->bytes};
  if (to == rank_) send_to_self(what);
  else start_send(what);
  return what;
}

void engine::start_send(operation& what) {
  auto& to = peer(what.peer);
  const bool is_eager = what.bytes <= eager_limit(what.at, to);
  const auto cost = cost_of(is_eager, !is_eager && is_for_rendezvous(what), what.bytes);
  // Behind others that wait, whatever it costs: messages match in the order in which they were sent.
  const bool has_turn = what.state == operation_state::queued;
  if ((!has_turn && !to.waiting_sends.is_empty()) || to.sent_cost - to.granted_cost + cost > limits_.unexpected_bytes) {
    if (!has_turn) ++counts_.waiting_sends;
    what.state = operation_state::queued;
    to.waiting_sends.push_back(&what);
    return;
  }
  to.sent_cost += cost;
  what.cost = cost;
  what.state = operation_state::waiting;
  if (!is_eager) return announce(what, frame_kind::announce);
  ++counts_.eager;
  g_live_eager.add(what.bytes);
  what.out.head.tag = what.tag;
  what.out.head.bytes = what.bytes;
  depart_operation(what, frame_kind::eager, what.bytes, &read_message);
}

void engine::send_waiting(peer_state& to) {
  while (operation* const first = to.waiting_sends.first()) {
    const bool is_eager = first->bytes <= eager_limit(first->at, to);
    const auto cost = cost_of(is_eager, !is_eager && is_for_rendezvous(*first), first->bytes);
    if (to.sent_cost - to.granted_cost + cost > limits_.unexpected_bytes) return;
    to.waiting_sends.remove(first);
    start_send(*first);
  }
}

void engine::send_to_self(operation& what) {
  ++counts_.self;
  g_live_self.add(what.bytes);
  if (operation* const receive = matcher_.take_receive(rank_, what.tag)) return deliver_from_self(*receive, what);
  auto& arrival = operations_.take(operation_kind::arrival);
  arrival.peer = rank_;
  arrival.info = what.info;
  arrival.bytes = what.bytes;
  ++counts_.unexpected;
  const bool fits = what.bytes <= crossovers::kMostEager && counts_.unexpected_bytes + what.bytes <= kMostHeldOfSelf;
  if (!fits) {
    arrival.self_send = &what;
    what.peer_op = arrival.id();
    return matcher_.hold(arrival);
  }
  arrival.held.resize(what.bytes);
  const auto done = memory_.read(what.at, 0, arrival.held.data(), what.bytes, touch_of(what.at));
  if (!done) {
    operations_.give_back(arrival);
    return end(what, done.code(), done.error().message);
  }
  counts_.unexpected_bytes += what.bytes;
  matcher_.hold(arrival);
  end(what, 0);
}

// ---- Receiving

operation& engine::irecv(int from, const buffer& to, std::uint64_t tag, std::uint64_t mask) {
  constexpr auto kKind = operation_kind::receive;
  const bool is_any = from == kAnySource;
  if (!is_any && (from < 0 || from >= size_)) return failed(kKind, EINVAL, refuses_peer(from)->message);
  auto at = memory_.look(to);
  if (!at) return failed(kKind, at.code(), at.error().message);
  auto& what = operations_.take(kKind);
  what.peer = from;
  what.tag = tag;
  what.mask = mask;
  what.at = *at;
  what.info = {from, tag, 0};
  if (operation* const arrival = matcher_.find_arrival(from, tag, mask)) {
    matcher_.remove_arrival(*arrival);
    receive_arrival(what, *arrival);
    return what;
  }
  const bool nobody_lives = size_ > 1 && std::all_of(peers_.begin(), peers_.end(), [&](const peer_state& each) {
                              return each.is_dead || each.rank == rank_;
                            });
  if (is_any ? nobody_lives : peer(from).is_dead) {
    end(what, ECONNRESET, is_any ? "every other process is gone" : format("rank %d is gone", from));
    return what;
  }
  matcher_.post(what);
  // A peer on another host is only missed where there is a connection.
  if (!is_any && from != rank_ && peer(from).sent == 0 && !peer(from).is_same_node)
    control(from, {.kind = frame_kind::hello});
  return what;
}

void engine::on_message(peer_state& from, const frame& head, const std::byte* payload, std::size_t bytes, int outcome) {
  const bool is_eager = head.kind == frame_kind::eager;
  if (!is_eager && bytes != sizeof(bulk_offer)) return;
  const auto cost = cost_of(is_eager, head.is_remote != 0, head.bytes);
  if (operation* const to = matcher_.take_receive(from.rank, head.tag)) {
    from.taken_cost += cost;
    to->info = {from.rank, head.tag, head.bytes};
    if (is_eager) {
      deliver(*to, payload, bytes, outcome);
    } else {
      bulk_offer offer;
      std::memcpy(&offer, payload, sizeof offer);
      receive_announced(*to, from.rank, offer, head.bytes, head.op, std::move(arriving_));
    }
    return tell_credit(from);
  }
  auto& arrival = operations_.take(operation_kind::arrival);
  arrival.peer = from.rank;
  arrival.info = {from.rank, head.tag, head.bytes};
  arrival.bytes = head.bytes;
  arrival.peer_op = head.op;
  arrival.cost = cost;
  arrival.code = outcome;
  arrival.is_announced = !is_eager;
  arrival.held.assign(payload, payload + bytes);
  arrival.data = std::move(arriving_);
  counts_.unexpected_bytes += bytes;
  ++counts_.unexpected;
  matcher_.hold(arrival);
}

void engine::deliver(operation& to, const std::byte* payload, std::size_t bytes, int outcome) {
  if (outcome != 0) return end(to, EIO, format("rank %d could not read the memory of its message", to.info.source));
  const auto fits = std::min<std::size_t>(bytes, to.at.bytes);
  const bool by_cpu = fits <= limits_.store_limit;
  const auto done =
      fits == 0 ? status{} : memory_.write(to.at, 0, payload, fits, by_cpu ? touch::cpu_only : touch_of(to.at));
  if (!done) return end(to, done.code(), done.error().message);
  if (bytes > fits) return end(to, EMSGSIZE, format("a message of %zu bytes for a buffer of %zu", bytes, to.at.bytes));
  end(to, 0);
}

void engine::receive_arrival(operation& to, operation& arrival) {
  to.info = arrival.info;
  auto& from = peer(arrival.peer);
  from.taken_cost += arrival.cost;
  if (arrival.self_send != nullptr) {
    deliver_from_self(to, *arrival.self_send);
  } else if (arrival.is_announced) {
    bulk_offer offer;
    std::memcpy(&offer, arrival.held.data(), sizeof offer);
    counts_.unexpected_bytes -= arrival.held.size();
    to.peer = arrival.peer;
    if (from.is_dead) end(to, ECONNRESET, format("rank %d is gone", arrival.peer));
    else receive_announced(to, arrival.peer, offer, arrival.bytes, arrival.peer_op, std::move(arrival.data));
  } else {
    counts_.unexpected_bytes -= arrival.held.size();
    deliver(to, arrival.held.data(), arrival.held.size(), arrival.code);
  }
  operations_.give_back(arrival);
  if (from.rank != rank_ && !from.is_dead) tell_credit(from);
}

void engine::deliver_from_self(operation& to, operation& send) {
  to.info = send.info;
  const auto fits = std::min(send.at.bytes, to.at.bytes);
  const auto done = memory_.move(to.at, send.at, fits);
  end(send, done.code(), done ? "" : done.error().message);
  if (!done) return end(to, done.code(), done.error().message);
  if (send.at.bytes > fits)
    return end(to, EMSGSIZE, format("a message of %zu bytes for a buffer of %zu", send.at.bytes, to.at.bytes));
  end(to, 0);
}

// ---- Matched probe

operation* engine::find_message(int from, std::uint64_t tag, std::uint64_t mask, bool take) {
  operation* const found = matcher_.find_arrival(from, tag, mask);
  if (found != nullptr && take) {
    matcher_.remove_arrival(*found);
    found->is_taken = true;
  }
  return found;
}

operation& engine::receive_taken(operation& arrival, const buffer& to) {
  auto at = memory_.look(to);
  if (!at) {
    discard(arrival);
    return failed(operation_kind::receive, at.code(), at.error().message);
  }
  auto& what = operations_.take(operation_kind::receive);
  what.peer = arrival.peer;
  what.at = *at;
  receive_arrival(what, arrival);
  return what;
}

// Into a buffer of no bytes: its sender ends well.
void engine::discard(operation& arrival) {
  auto& what = operations_.take(operation_kind::receive);
  what.peer = arrival.peer;
  what.at = {};
  receive_arrival(what, arrival);
  release(what);
}

// ---- Cancelling

status engine::cancel(operation& what) {
  if (what.has_ended()) return {};
  const failure busy{EBUSY, "the operation is under way and cannot be cancelled: wait for its end"};
  if (what.kind == operation_kind::receive && what.state == operation_state::waiting) {
    matcher_.remove_receive(what);
  } else if (what.kind == operation_kind::send && what.state == operation_state::queued) {
    peer(what.peer).waiting_sends.remove(&what);
  } else if (what.kind == operation_kind::send && what.peer == rank_) {
    operation* const arrival = operations_.find(what.peer_op);
    if (arrival == nullptr || arrival->is_taken) return busy;
    matcher_.remove_arrival(*arrival);
    operations_.give_back(*arrival);
  } else {
    // Announced and not begun: its receiver forgets it if no receive has taken it, and says which it was.
    const bool is_announced =
        what.kind == operation_kind::send && what.state == operation_state::waiting && what.transfer != nullptr;
    if (is_announced && !what.transfer->is_retracted) {
      what.transfer->is_retracted = true;
      control(what.peer, {.kind = frame_kind::retract, .is_remote = what.out.head.is_remote, .op = what.id()});
    }
    return busy;
  }
  end(what, ECANCELED, "cancelled");
  return {};
}

void engine::on_retract(peer_state& from, const frame& head) {
  operation* found = nullptr;
  matcher_.for_each_arrival([&](operation& each) {
    if (each.peer == from.rank && each.is_announced && each.peer_op == head.op) found = &each;
  });
  // By UCX's word alone the sender of what UCX moves cannot tell whether it was taken or forgotten.
  if (found == nullptr && head.is_remote != 0) control(from.rank, {.kind = frame_kind::finish, .peer_op = head.op});
  if (found == nullptr) return;
  matcher_.remove_arrival(*found);
  from.taken_cost += found->cost;
  counts_.unexpected_bytes -= found->held.size();
  operations_.give_back(*found);
  control(from.rank, {.kind = frame_kind::finish, .code = ECANCELED, .peer_op = head.op});
}

}  // namespace pl::link
