// SPDX-License-Identifier: Apache-2.0
#include "messaging/messenger_core.hpp"

#include <cstring>

#include "base/text.hpp"
#include "messaging/peer_handshake.hpp"
#include "os/launcher_siblings.hpp"

namespace pl::messaging {
namespace {

constexpr unsigned kRoundsBetweenClocks = 256;

}  // namespace

messenger_core::messenger_core(const cu::driver_table* cuda, const messenger_options& wanted, int rank, int size)
    : context_(cuda, wanted, rank, size),
      watch_(context_),
      channel_(context_, watch_, *this),
      rendezvous_(context_, channel_, watch_),
      messages_(context_, channel_, rendezvous_),
      direct_(context_),
      windows_(context_, channel_, rendezvous_, direct_),
      barrier_(context_, channel_, watch_),
      failures_(context_),
      revocation_(context_, channel_, rendezvous_, messages_),
      returns_(context_, channel_, watch_, rendezvous_, messages_, direct_, barrier_, failures_) {}

// ---- Opening, and the end

status messenger_core::open(bootstrap& group) {
  if (auto done = context_.open_memory(); !done) return done;
  rendezvous_.open();
  if (context_.size > 1) {
    if (context_.options.use_cma || context_.options.use_channels) let_launcher_siblings_in();
    windows_.number_from(group.incarnation());
    const auto connected = returns_.handshake().run(group);
    if (!connected) return connected.error();
    do_all_calibrate_ = *connected;
    if (group.stays_open()) returns_.open(group);
  }
  is_open_ = true;
  return {};
}

messenger_core::~messenger_core() {
  thread_.reset();
  if (context_.size > 1 && is_open_) channel_.leave();
  rendezvous_.close();
  channel_.close_all();
}

// ---- Frames

void messenger_core::dispatch(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes,
                              int outcome) {
  update_credit(source, head.gpu, head.credit);
  switch (head.kind) {
    case frame_kind::eager:
    case frame_kind::rts:
      return messages_.on_message(source, head, payload, bytes, outcome);
    case frame_kind::put_eager:
    case frame_kind::put_signal:
    case frame_kind::put_rts:
      return windows_.on_put(source, head, payload, bytes, outcome);
    case frame_kind::reply_eager:
    case frame_kind::reply_rts:
      return windows_.on_reply(source, head, payload, bytes, outcome);
    case frame_kind::get:
      return windows_.on_get(source, head);
    case frame_kind::atomic:
      return windows_.on_atomic(source, head, payload, bytes);
    case frame_kind::atomic_reply:
      return windows_.on_atomic_reply(head);
    case frame_kind::rtr:
      if (rtr_body request; bytes == sizeof request) {
        std::memcpy(&request, payload, sizeof request);
        rendezvous_.on_rtr(source, head, request);
      }
      return;
    case frame_kind::parts:
      return rendezvous_.on_parts(source, head);
    case frame_kind::ats:
      return rendezvous_.on_ats(head);
    case frame_kind::retract:
      return messages_.on_retract(source, head);
    case frame_kind::withdraw:
      return revocation_.on_withdraw(source, head);
    case frame_kind::check:
      return rendezvous_.on_check(source, head);
    case frame_kind::checked:
      return rendezvous_.on_checked(source, head);
    case frame_kind::barrier:
      return barrier_.on_frame(source, head);
    case frame_kind::bye:
      source.has_left = true;
      watch_.report_leaving(source.rank);
      return;
    case frame_kind::credit:
    case frame_kind::hello:
      return;
  }
}

void messenger_core::take_eager(peer_state& source, const compact_frame& head, const std::byte* payload, std::size_t bytes,
                                int outcome) {
  update_credit(source, head.gpu, head.credit);
  messages_.on_eager(source, head.tag, tag_space{static_cast<std::uint8_t>(head.space & 1u)}, payload, bytes, outcome);
}

void messenger_core::update_credit(peer_state& remote, std::uint16_t gpu, std::uint64_t credit) {
  if (gpu != 0 && gpu != remote.gpu) {
    remote.gpu = gpu;
    if (remote.is_same_node) context_.gpu_use.note_peer(gpu);
  }
  if (credit <= remote.granted_cost) return;
  remote.granted_cost = credit;
  if (!remote.waiting_sends.is_empty()) messages_.send_waiting(remote);
}

// ---- Sleeping

result<int> messenger_core::open_descriptor() {
  std::vector<int> others;
  watch_.add_descriptors(others);
  if (channel_.fabric() != nullptr) {
    auto network = channel_.fabric()->descriptor();
    if (!network) return std::move(network).error();
    others.push_back(*network);
  }
  if (const int meeting = returns_.descriptor(); meeting >= 0) others.push_back(meeting);
  return context_.wake.descriptor(others);
}

// Sets the marks first, then checks everything, so that whatever a peer does before it sees its mark is detected.
status messenger_core::arm_owner() {
  auto& wake = context_.wake;
  wake.drain();
  if (std::exchange(seen_events_, wake.events()) != wake.events()) return wakeup::something_happened();
  channel_.mark_sleeping(true);
  if (auto ordered = channel_.order_marks(); !ordered) return channel_.mark_sleeping(false), ordered;
  watch_.check_now();
  progress();
  const bool must_go_on = wake.events() != seen_events_ || rendezvous_.must_poll() || watch_.has_leaving() ||
                          returns_.must_poll() || (channel_.fabric() != nullptr && !channel_.fabric()->arm());
  if (must_go_on) {
    channel_.mark_sleeping(false);
    seen_events_ = wake.events();
    return wakeup::something_happened();
  }
  wake.let_owner_sleep();
  return {};
}

// ---- Progress, and the loss of a peer

bool messenger_core::progress(bool with_network) {
  const bool has_moved = channel_.advance(with_network);
  if (has_moved) context_.wake.note();
  rendezvous_.advance();
  if (!context_.due_words.empty()) windows_.raise_due_words();
  if (++rounds_ % kRoundsBetweenClocks == 0 && watch_.check()) {
    channel_.reap_closed();
    direct_.release_ended();
  }
  watch_.drop_ended();
  if (returns_.is_open()) returns_.advance();
  while (watch_.has_lost()) {
    const auto [rank, reason] = watch_.take_lost();
    mark_lost(rank, reason);
  }
  return has_moved;
}

void messenger_core::mark_lost(int rank, const std::string& reason) {
  auto& remote = context_.peer(rank);
  if (remote.is_dead) return;
  context_.wake.note();
  remote.is_lost = true;
  channel_.drain(remote);
  remote.is_dead = true;
  watch_.remove(rank);
  channel_.close(remote);
  remote.loss = format("rank %d %s", rank, reason.c_str());
  fail_operations(rank, remote.loss);
  failures_.report(rank, remote.has_left ? failure_kind::closed : failure_kind::lost);
  rendezvous_.forget(rank);
  direct_.forget(rank);
  remote.early.clear();
  remote.early_bytes = 0;
  returns_.on_lost(remote);
}

status messenger_core::cancel(operation& op) {
  if (op.kind == operation_kind::failure) return failures_.cancel(op), status{};
  if (op.kind == operation_kind::arrival) return returns_.cancel(op), status{};
  return messages_.cancel(op);
}

void messenger_core::fail_operations(int rank, const std::string& reason) {
  while (operation* const waiting = context_.peer(rank).waiting_sends.pop_front())
    context_.end(*waiting, ECONNRESET, reason);
  context_.operations.for_each([&](operation& each) {
    // A wildcard receive may have been meant for the lost peer, so it must report the loss.
    const bool concerns_it = each.peer == rank || (each.kind == operation_kind::receive && each.peer == kAnySource &&
                                                   each.state == operation_state::waiting);
    if (concerns_it && !each.has_ended()) fail_operation(each, reason);
  });
}

void messenger_core::fail_operation(operation& op, const std::string& reason) {
  if (op.kind == operation_kind::unexpected) return messages_.lose_sender(op);
  if (op.leader != 0) return;  // its put ends it
  if (rendezvous::abort_lost(op, reason)) return;
  if (op.kind == operation_kind::receive && op.state == operation_state::waiting) messages_.unpost(op);
  context_.end(op, ECONNRESET, reason);
}

}  // namespace pl::messaging
