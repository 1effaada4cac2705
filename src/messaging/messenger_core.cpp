// SPDX-License-Identifier: Apache-2.0
#include "messaging/messenger_core.hpp"

#include <cstring>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "messaging/peer_introduction.hpp"

namespace pl::messaging {
namespace {

constexpr unsigned kRoundsBetweenClocks = 256;

}  // namespace

messenger_core::messenger_core(const cu::driver_table* cuda, const messenger_options& wanted, int rank, int size)
    : context_(cuda, wanted, rank, size), watch_(context_), channel_(context_, watch_, *this), ipc_(cuda) {}

// ---- Opening, and the end

status messenger_core::open(bootstrap& group) {
  if (auto done = context_.open_memory(); !done) return done;
  pinned_.emplace(context_.buffers.planner(), context_.limits.network_chunk_bytes);
  if (context_.size > 1) {
    const auto introduced = introduce_peers(group, context_, channel_, watch_);
    if (!introduced) return introduced.error();
    do_all_calibrate_ = *introduced;
  }
  is_open_ = true;
  return {};
}

messenger_core::~messenger_core() {
  if (context_.size > 1 && is_open_) channel_.leave();
  for (auto& each : context_.peers) drop_rings(each);
  // Releases messages that were never received. Their senders have got `bye`.
  context_.operations.for_each([](operation& each) {
    each.data.reset();
    if (each.transfer != nullptr) each.transfer->data.reset();
  });
  channel_.close_all();
}

// ---- Frames

void messenger_core::dispatch(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes,
                              int outcome) {
  update_credit(source, head);
  switch (head.kind) {
    case frame_kind::eager:
    case frame_kind::rts:
      return on_message(source, head, payload, bytes, outcome);
    case frame_kind::put_eager:
    case frame_kind::put_rts:
      return on_put(source, head, payload, bytes, outcome);
    case frame_kind::reply_eager:
    case frame_kind::reply_rts:
      return on_reply(source, head, payload, bytes, outcome);
    case frame_kind::get:
      return on_get(source, head);
    case frame_kind::atomic:
      if (atomic_request request; bytes == sizeof request) {
        std::memcpy(&request, payload, sizeof request);
        on_atomic(source, head, request);
      }
      return;
    case frame_kind::atomic_reply:
      if (operation* const asked = context_.operations.find(head.peer_op); asked != nullptr && !asked->has_ended()) {
        if (asked->before != nullptr) *asked->before = head.tag;
        context_.end(*asked, head.code);
      }
      return;
    case frame_kind::rtr:
      if (rtr_body request; bytes == sizeof request) {
        std::memcpy(&request, payload, sizeof request);
        on_rtr(source, head, request);
      }
      return;
    case frame_kind::parts:
      return on_parts(source, head);
    case frame_kind::ats:
      return on_ats(head);
    case frame_kind::retract:
      return on_retract(source, head);
    case frame_kind::withdraw:
      return on_withdraw(source, head);
    case frame_kind::check:
      return on_check(source, head);
    case frame_kind::checked:
      return on_checked(source, head);
    case frame_kind::barrier:
      return on_barrier(source, head);
    case frame_kind::bye:
      source.has_left = true;
      watch_.report_leaving(source.rank);
      return;
    case frame_kind::credit:
    case frame_kind::hello:
      return;
  }
}

void messenger_core::update_credit(peer_state& remote, const frame& head) {
  if (head.gpu != 0 && head.gpu != remote.gpu) {
    remote.gpu = head.gpu;
    if (remote.is_same_node && head.gpu == context_.gpu) context_.is_gpu_shared = true;
  }
  if (head.credit <= remote.granted_cost) return;
  remote.granted_cost = head.credit;
  if (!remote.waiting_sends.is_empty()) send_waiting(remote);
}

// ---- Progress, and the loss of a peer

bool messenger_core::progress(bool with_network) {
  const bool has_moved = channel_.advance(with_network);
  if (!moving_.is_empty()) advance();
  if (!ring_peers_.empty()) advance_rings();
  if (++rounds_ % kRoundsBetweenClocks == 0 && watch_.check()) channel_.reap_closed();
  watch_.drop_departed();
  while (watch_.has_lost()) {
    const auto [rank, why] = watch_.take_lost();
    mark_lost(rank, why);
  }
  return has_moved;
}

void messenger_core::mark_lost(int rank, const std::string& why) {
  auto& remote = context_.peer(rank);
  if (remote.is_dead) return;
  remote.refuses_cma = true;  // its number may be another process's by now
  channel_.drain(remote);
  remote.is_dead = true;
  watch_.remove(rank);
  channel_.close(remote);
  fail_operations_of(rank, format("rank %d %s", rank, why.c_str()));
  drop_rings(remote);
  remote.early.clear();
  ipc_.forget(rank);
}

void messenger_core::fail_operations_of(int rank, const std::string& why) {
  while (operation* const waiting = context_.peer(rank).waiting_sends.pop_front()) context_.end(*waiting, ECONNRESET, why);
  while (operation* const filling = context_.peer(rank).fill_queue.pop_front()) context_.end(*filling, ECONNRESET, why);
  context_.operations.for_each([&](operation& each) {
    // A wildcard receive may have been meant for the lost peer, so it must report the loss.
    const bool is_of = each.peer == rank || (each.kind == operation_kind::receive && each.peer == kAnySource &&
                                             each.state == operation_state::waiting);
    if (is_of && !each.has_ended()) fail_operation_of(each, why);
  });
}

void messenger_core::fail_operation_of(operation& op, const std::string& why) {
  if (op.kind == operation_kind::unexpected) {
    if (!op.is_rendezvous || op.is_taken) return;  // complete messages stay receivable
    matcher_.remove_unexpected(op);
    op.state = operation_state::ended;
    context_.operations.give_back(op);
    return;
  }
  if (op.state == operation_state::moving && op.transfer != nullptr) {
    // These end by themselves: the IPC mapping lives until it is closed here, and the next CMA read fails.
    const auto transport = op.transfer->transport;
    if ((transport == transport_kind::cuda_ipc || transport == transport_kind::cma) && !op.transfer->is_checked) return;
    if (op.transfer->transport == transport_kind::ucx) {
      op.transfer->code = ECONNRESET;
      op.transfer->message = why;
      op.transfer->is_withdrawn = true;
      op.transfer->lost_ns = monotonic_ns();
      return abandon_parts(op);
    }
  }
  if (op.kind == operation_kind::receive && op.state == operation_state::waiting) matcher_.remove_receive(op);
  context_.end(op, ECONNRESET, why);
}

}  // namespace pl::messaging
