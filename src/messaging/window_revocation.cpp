// SPDX-License-Identifier: Apache-2.0
#include "messaging/window_revocation.hpp"

#include <algorithm>

namespace pl::messaging {

int memory_revocation::window_user(std::uint32_t id) {
  int user = -1;
  context_.operations.for_each([&](operation& each) {
    if (each.window == id && !revoke(each)) user = each.peer;
  });
  return user;
}

bool memory_revocation::revoke(operation& op) {
  if (op.has_ended()) return true;
  if (op.kind == operation_kind::send && op.peer == context_.rank) {
    revoke_to_self(op);
    return true;
  }
  if (op.is_sending) return revoke_unsent(op);
  if (op.state == operation_state::waiting || op.state == operation_state::queued) return revoke_waiting(op);
  if (op.transfer == nullptr) return true;
  if (op.transfer->is_checked) return rendezvous_.finish_receive(op, ECANCELED, "cancelled"), true;
  return op.transfer->active->abort(op, {abort_cause::revoked, ECANCELED, "cancelled"});
}

void memory_revocation::revoke_to_self(operation& op) {
  // A matched_message still refers to it, and gets an error.
  if (operation* const unexpected = context_.operations.find(op.peer_op);
      unexpected != nullptr && unexpected->self_send == &op) {
    unexpected->self_send = nullptr;
    unexpected->code = ECANCELED;
  }
  context_.end(op, ECANCELED, "cancelled");
}

// For an operation whose packet was not sent. UCX may still hold it; a packet that waits for a full shm queue can be
// removed.
bool memory_revocation::revoke_unsent(operation& op) {
  auto& destination = context_.peer(op.peer);
  const auto found = std::find(destination.unsent.begin(), destination.unsent.end(), &op.out);
  if (found == destination.unsent.end()) return op.kind == operation_kind::get || op.kind == operation_kind::atomic;
  destination.unsent.erase(found);
  op.is_sending = false;
  destination.sent_cost -= op.cost;
  if (op.kind == operation_kind::reply)
    channel_.send_control(op.peer, {.kind = frame_kind::ats, .code = ECANCELED, .peer_op = op.out.head.peer_op});
  context_.end(op, ECANCELED, "cancelled");
  return true;
}

bool memory_revocation::revoke_waiting(operation& op) {
  const auto ended = [&] { return context_.end(op, ECANCELED, "cancelled"), true; };
  if (op.state == operation_state::queued) return context_.peer(op.peer).waiting_sends.remove(&op), ended();
  if (op.kind == operation_kind::receive) return messages_.unpost(op), ended();
  if (op.kind == operation_kind::get || op.kind == operation_kind::atomic) return ended();
  // A put whose bytes were sent only waits for the target's ATS.
  if (op.transfer == nullptr || op.transfer->active != nullptr) return true;
  auto& destination = context_.peer(op.peer);
  const bool is_reply = op.kind == operation_kind::reply;
  if (!std::exchange(op.transfer->is_revoked, true)) {
    if (destination.queue_out.is_open()) destination.queue_out.count_withdrawal();
    channel_.send_control(op.peer, {.kind = frame_kind::withdraw, .op = op.id()});
    if (is_reply && !destination.queue_out.is_open())
      channel_.send_control(op.peer, {.kind = frame_kind::ats, .code = ECANCELED, .peer_op = op.out.head.peer_op});
  }
  // Its memory belongs to a window, so the peer must confirm that it has stopped reading.
  if (is_reply && destination.queue_out.is_open()) return false;
  return ended();
}

// ---- The other side

void memory_revocation::on_withdraw(peer_state& source, const frame& head) {
  operation *held = nullptr, *moving = nullptr;
  context_.operations.for_each([&](operation& each) {
    if (each.peer != source.rank || each.peer_op != head.op) return;
    if (each.kind == operation_kind::unexpected && each.is_rendezvous && !each.is_taken) held = &each;
    const bool is_receive = each.state == operation_state::moving && each.transfer != nullptr && each.transfer->is_receive;
    if (is_receive) moving = &each;
  });
  const auto answer = [&] {
    channel_.send_control(source.rank, {.kind = frame_kind::ats, .code = ECANCELED, .peer_op = head.op});
  };
  if (moving != nullptr) {
    if (moving->transfer->is_checked) return;  // this side has already asked the sender
    moving->transfer->active->abort(*moving, {abort_cause::withdrawn, ECANCELED, kTakenBack});
    return;
  }
  if (held != nullptr) {
    messages_.drop_rts(source, *held);
    channel_.send_credit(source);
  }
  answer();
}

}  // namespace pl::messaging
