// SPDX-License-Identifier: Apache-2.0
// Takes memory back while a transport uses it: a window ends, a request is dropped, a wait times out.
//
// Transfers that this process makes itself (copies into and out of a ring, parts through UCX, reads of a peer's memory)
// stop here. A peer's own reads (process_vm_readv, CUDA IPC) cannot be stopped from here. So the withdrawal is counted
// in the shm queue before the memory is returned, and a peer that reads it later detects that it has not read the
// message. No process writes into another one's memory: the target of a put reads it.
#include <algorithm>

#include "base/text.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::messaging {

int messenger_core::window_user(std::uint32_t id) {
  int user = -1;
  context_.operations.for_each([&](operation& each) {
    if (each.window == id && !revoke(each)) user = each.peer;
  });
  return user;
}

bool messenger_core::revoke(operation& op) {
  if (op.has_ended()) return true;
  if (op.kind == operation_kind::send && op.peer == context_.rank) {
    // A matched_message still refers to it, and gets an error.
    if (operation* const unexpected = context_.operations.find(op.peer_op);
        unexpected != nullptr && unexpected->self_send == &op) {
      unexpected->self_send = nullptr;
      unexpected->code = ECANCELED;
    }
    context_.end(op, ECANCELED, "cancelled");
    return true;
  }
  if (op.is_sending) return revoke_unsent(op);
  if (op.state == operation_state::waiting || op.state == operation_state::queued) return revoke_waiting(op);
  if (op.transfer == nullptr) return true;
  return op.transfer->is_receive ? revoke_receive(op) : revoke_send(op);
}

// Its packet has not left. UCX may still hold it; a packet that waits for a full shm queue can be removed.
bool messenger_core::revoke_unsent(operation& op) {
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

bool messenger_core::revoke_waiting(operation& op) {
  const auto ended = [&] { return context_.end(op, ECANCELED, "cancelled"), true; };
  if (op.state == operation_state::queued) return context_.peer(op.peer).waiting_sends.remove(&op), ended();
  if (op.kind == operation_kind::receive) return matcher_.remove_receive(op), ended();
  if (op.kind == operation_kind::get || op.kind == operation_kind::atomic) return ended();
  // A put whose bytes have left only waits for the target's ATS.
  if (op.transfer == nullptr || op.transfer->transport != transport_kind::none) return true;
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

bool messenger_core::revoke_send(operation& op) {
  auto& state = *op.transfer;
  if (state.code == 0) state.code = ECANCELED, state.message = "cancelled";
  if (state.transport == transport_kind::shm) {
    const auto& end_out = context_.peer(op.peer).outbound;
    for (std::size_t slot = 0; slot < shm_ring::kChunks; ++slot)
      if (end_out.copies[slot].is_pending && end_out.senders[slot] == op.id()) return false;
    return true;
  }
  if (state.transport != transport_kind::ucx || state.parts == nullptr) return true;
  return std::none_of(state.parts->begin(), state.parts->end(), [](const transfer_state::part& each) {
    return each.op != nullptr && (each.is_filling || (each.is_busy && each.chunk == nullptr));
  });
}

bool messenger_core::revoke_receive(operation& op) {
  auto& state = *op.transfer;
  const bool is_first = !std::exchange(state.is_revoked, true);
  if (state.is_checked) return finish_receive(op, ECANCELED, "cancelled"), true;
  if (state.transport == transport_kind::cma) {
    --cma_receives_;
    moving_.remove(&op);
    finish_receive(op, ECANCELED, "cancelled");
    return true;
  }
  if (state.transport == transport_kind::cuda_ipc) {  // the GPU's copies end by themselves
    if (!ready_.empty()) submit_copies();
    return false;
  }
  if (state.code == 0) state.code = ECANCELED, state.message = "cancelled";
  if (state.transport == transport_kind::shm) {
    const auto& end_in = context_.peer(op.peer).inbound;
    for (std::size_t slot = 0; slot < shm_ring::kChunks; ++slot)
      if (end_in.copies[slot].is_pending && end_in.labels[slot].op == op.id()) return false;
    return true;
  }
  if (state.parts == nullptr) return true;
  if (is_first) channel_.send_control(op.peer, {.kind = frame_kind::ats, .code = ECANCELED, .peer_op = op.peer_op});
  bool is_free = true;
  for (auto& part : *state.parts) {
    if (part.op == nullptr || part.is_scratch) continue;
    if (part.is_busy && part.chunk == nullptr) {
      if (is_first) channel_.fabric()->cancel_tagged(part);
      is_free = is_free && !part.is_busy;
    }
    is_free = is_free && !part.copy.is_pending;
  }
  return is_free;
}

// ---- The other side

// All bytes were read in the sender's memory. They are valid unless the sender has taken it back meanwhile.
void messenger_core::finish_read(operation& op, int code, std::string message) {
  auto& state = *op.transfer;
  const auto& source = context_.peer(op.peer);
  const bool is_sure = !source.queue_in.is_open() || source.queue_in.withdrawals() == state.withdrawals;
  if (code != 0 || is_sure || source.is_dead) return finish_receive(op, code, std::move(message));
  state.is_checked = true;
  channel_.send_control(op.peer, {.kind = frame_kind::check, .op = op.id(), .peer_op = op.peer_op});
}

void messenger_core::on_check(const peer_state& source, const frame& head) {
  const operation* const op = context_.operations.find(head.peer_op);
  const bool holds = op != nullptr && op->peer == source.rank && op->state == operation_state::waiting &&
                     op->transfer != nullptr && !op->transfer->is_revoked;
  channel_.send_control(source.rank, {.kind = frame_kind::checked, .code = holds ? 0 : ECANCELED, .peer_op = head.op});
}

void messenger_core::on_checked(const peer_state& source, const frame& head) {
  operation* const op = context_.operations.find(head.peer_op);
  const bool is_asked =
      op != nullptr && op->peer == source.rank && !op->has_ended() && op->transfer != nullptr && op->transfer->is_checked;
  if (is_asked) finish_receive(*op, head.code, head.code == 0 ? "" : kTakenBack);
}

void messenger_core::on_withdraw(peer_state& source, const frame& head) {
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
    const auto transport = moving->transfer->transport;
    if (moving->transfer->is_checked) return;  // its own question is on its way
    if (transport == transport_kind::cuda_ipc) moving->transfer->is_revoked = true;
    if (transport != transport_kind::cma) return;  // the sender ends what it moves itself
    --cma_receives_;
    moving_.remove(moving);
    return finish_receive(*moving, ECANCELED, kTakenBack);
  }
  if (held != nullptr) {
    matcher_.remove_unexpected(*held);
    source.taken_cost += held->cost;
    context_.counts.unexpected_bytes -= held->held.size();
    context_.operations.give_back(*held);
    channel_.send_credit(source);
  }
  answer();
}

}  // namespace pl::messaging
