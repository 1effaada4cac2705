// SPDX-License-Identifier: Apache-2.0
// Memory that its owner takes back while a transport uses it: a window that ends, a request that is dropped, a time-out.
//
// What this process moves itself (copies into and out of a ring, parts through UCX, reads of another's memory) stops here.
// What a peer reads by itself (process_vm_readv, CUDA IPC) cannot be stopped without it: the withdrawal is counted in the
// lane before the memory is given back, so a peer that goes on later finds out that what it has read is not the message.
// Nobody writes into another process's memory: a put is fetched by its target.
#include <algorithm>

#include "base/text.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::link {

std::pair<std::uint64_t, std::uint64_t> engine::heard_of(int rank) const {
  const auto& of = peers_[static_cast<std::size_t>(rank)];
  return {of.received, of.lane_out.is_open() ? of.lane_out.reader_position() : 0};
}

int engine::user_of_window(std::uint32_t id) {
  int user = -1;
  operations_.for_each([&](operation& each) {
    if (each.window == id && !revoke(each)) user = each.peer;
  });
  return user;
}

bool engine::revoke(operation& what) {
  if (what.has_ended()) return true;
  if (what.kind == operation_kind::send && what.peer == rank_) {
    // Somebody holds it as a matched message: it is an error there.
    if (operation* const arrival = operations_.find(what.peer_op); arrival != nullptr && arrival->self_send == &what) {
      arrival->self_send = nullptr;
      arrival->code = ECANCELED;
    }
    end(what, ECANCELED, "cancelled");
    return true;
  }
  if (what.is_departing) return revoke_unsent(what);
  if (what.state == operation_state::waiting || what.state == operation_state::queued) return revoke_waiting(what);
  if (what.transfer == nullptr) return true;
  return what.transfer->is_receive ? revoke_receive(what) : revoke_send(what);
}

// Its packet has not left. With UCX it may be anywhere; in front of a full lane it is ours.
bool engine::revoke_unsent(operation& what) {
  auto& to = peer(what.peer);
  const auto found = std::find(to.unsent.begin(), to.unsent.end(), &what.out);
  if (found == to.unsent.end()) return what.kind == operation_kind::get || what.kind == operation_kind::atomic;
  to.unsent.erase(found);
  what.is_departing = false;
  to.sent_cost -= what.cost;
  if (what.kind == operation_kind::reply)
    control(what.peer, {.kind = frame_kind::finish, .code = ECANCELED, .peer_op = what.out.head.peer_op});
  end(what, ECANCELED, "cancelled");
  return true;
}

bool engine::revoke_waiting(operation& what) {
  const auto ended = [&] { return end(what, ECANCELED, "cancelled"), true; };
  if (what.state == operation_state::queued) return peer(what.peer).waiting_sends.remove(&what), ended();
  if (what.kind == operation_kind::receive) return matcher_.remove_receive(what), ended();
  if (what.kind == operation_kind::get || what.kind == operation_kind::atomic) return ended();
  // A put whose bytes have left waits for the target's word alone.
  if (what.transfer == nullptr || what.transfer->way != bulk_way::none) return true;
  auto& to = peer(what.peer);
  const bool is_reply = what.kind == operation_kind::reply;
  if (!std::exchange(what.transfer->is_revoked, true)) {
    if (to.lane_out.is_open()) to.lane_out.count_withdrawal();
    control(what.peer, {.kind = frame_kind::withdraw, .op = what.id()});
    if (is_reply && !to.lane_out.is_open())
      control(what.peer, {.kind = frame_kind::finish, .code = ECANCELED, .peer_op = what.out.head.peer_op});
  }
  // Its memory is a window's: that the peer reads it no more is the peer's to say.
  if (is_reply && to.lane_out.is_open()) return false;
  return ended();
}

bool engine::revoke_send(operation& what) {
  auto& state = *what.transfer;
  if (state.code == 0) state.code = ECANCELED, state.message = "cancelled";
  if (state.way == bulk_way::shared_ring) {
    const auto& end_out = peer(what.peer).out;
    for (std::size_t slot = 0; slot < shm_ring::kChunks; ++slot)
      if (end_out.copies[slot].is_pending && end_out.senders[slot] == what.id()) return false;
    return true;
  }
  if (state.way != bulk_way::network || state.parts == nullptr) return true;
  return std::none_of(state.parts->begin(), state.parts->end(), [](const transfer_state::part& each) {
    return each.of != nullptr && (each.is_filling || (each.is_busy && each.chunk == nullptr));
  });
}

bool engine::revoke_receive(operation& what) {
  auto& state = *what.transfer;
  const bool is_first = !std::exchange(state.is_revoked, true);
  if (state.is_checked) return finish_receive(what, ECANCELED, "cancelled"), true;
  if (state.way == bulk_way::pull) {
    --pulls_;
    moving_.remove(&what);
    finish_receive(what, ECANCELED, "cancelled");
    return true;
  }
  if (state.way == bulk_way::ipc) {  // the GPU's copies end by themselves
    if (!ready_.empty()) submit_copies();
    return false;
  }
  if (state.code == 0) state.code = ECANCELED, state.message = "cancelled";
  if (state.way == bulk_way::shared_ring) {
    const auto& end_in = peer(what.peer).in;
    for (std::size_t slot = 0; slot < shm_ring::kChunks; ++slot)
      if (end_in.copies[slot].is_pending && end_in.labels[slot].op == what.id()) return false;
    return true;
  }
  if (state.parts == nullptr) return true;
  if (is_first) control(what.peer, {.kind = frame_kind::finish, .code = ECANCELED, .peer_op = what.peer_op});
  bool is_free = true;
  for (auto& part : *state.parts) {
    if (part.of == nullptr || part.is_scratch) continue;
    if (part.is_busy && part.chunk == nullptr) {
      if (is_first) fabric_->cancel_bulk(part);
      is_free = is_free && !part.is_busy;
    }
    is_free = is_free && !part.copy.is_pending;
  }
  return is_free;
}

// ---- The other side

// All was read in its sender's memory: it counts if the sender has not taken that back meanwhile.
void engine::finish_read(operation& of, int code, std::string message) {
  auto& state = *of.transfer;
  const auto& from = peer(of.peer);
  const bool is_sure = !from.lane_in.is_open() || from.lane_in.withdrawals() == state.withdrawals;
  if (code != 0 || is_sure || from.is_dead) return finish_receive(of, code, std::move(message));
  state.is_checked = true;
  control(of.peer, {.kind = frame_kind::check, .op = of.id(), .peer_op = of.peer_op});
}

void engine::on_check(const peer_state& from, const frame& head) {
  const operation* const what = operations_.find(head.peer_op);
  const bool holds = what != nullptr && what->peer == from.rank && what->state == operation_state::waiting &&
                     what->transfer != nullptr && !what->transfer->is_revoked;
  control(from.rank, {.kind = frame_kind::checked, .code = holds ? 0 : ECANCELED, .peer_op = head.op});
}

void engine::on_checked(const peer_state& from, const frame& head) {
  operation* const of = operations_.find(head.peer_op);
  const bool is_asked =
      of != nullptr && of->peer == from.rank && !of->has_ended() && of->transfer != nullptr && of->transfer->is_checked;
  if (is_asked) finish_receive(*of, head.code, head.code == 0 ? "" : kTakenBack);
}

void engine::on_withdraw(peer_state& from, const frame& head) {
  operation *held = nullptr, *moving = nullptr;
  operations_.for_each([&](operation& each) {
    if (each.peer != from.rank || each.peer_op != head.op) return;
    if (each.kind == operation_kind::arrival && each.is_announced && !each.is_taken) held = &each;
    const bool is_receive = each.state == operation_state::moving && each.transfer != nullptr && each.transfer->is_receive;
    if (is_receive) moving = &each;
  });
  const auto answer = [&] { control(from.rank, {.kind = frame_kind::finish, .code = ECANCELED, .peer_op = head.op}); };
  if (moving != nullptr) {
    const auto way = moving->transfer->way;
    if (moving->transfer->is_checked) return;  // its own question is on its way
    if (way == bulk_way::ipc) moving->transfer->is_revoked = true;
    if (way != bulk_way::pull) return;  // the sender ends what it moves itself
    --pulls_;
    moving_.remove(moving);
    return finish_receive(*moving, ECANCELED, kTakenBack);
  }
  if (held != nullptr) {
    matcher_.remove_arrival(*held);
    from.taken_cost += held->cost;
    counts_.unexpected_bytes -= held->held.size();
    operations_.give_back(*held);
    tell_credit(from);
  }
  answer();
}

}  // namespace pl::link
