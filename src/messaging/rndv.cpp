// SPDX-License-Identifier: Apache-2.0
#include "messaging/rndv.hpp"

#include <algorithm>
#include <cstring>

#include "base/text.hpp"

namespace pl::messaging {
namespace {

constexpr const char* kWindowEnded = "the target has ended its window while this was in progress";

// The error message if the other side ended a transfer with `code`.
const char* refusal_text(const operation& op, int code) {
  if (code == 0) return "";
  if (code != ECANCELED) return "the receiver's side failed";
  return op.kind == operation_kind::put || op.kind == operation_kind::get ? kWindowEnded : "cancelled";
}

}  // namespace

transport::transport(rendezvous& owner, bool awaits_ats)
    : rendezvous_(owner),
      context_(owner.context()),
      channel_(owner.channel()),
      all_in_flight_(owner.in_flight()),
      awaits_ats_(awaits_ats) {}

rendezvous::rendezvous(messenger_context& context, packet_channel& channel, peer_watch& watch)
    : context_(context), channel_(channel), dma_(*this), cuda_ipc_(*this), cma_(*this, watch), shm_(*this), ucx_(*this) {}

// The senders of messages that were never received have been sent `bye`.
void rendezvous::close() {
  for (const auto& each : context_.peers) shm_.forget(each.rank);
  context_.operations.for_each([](operation& each) {
    each.data.reset();
    if (each.transfer != nullptr) each.transfer->data.reset();
  });
}

void rendezvous::forget(int rank) {
  for (transport* const each : all_) each->forget(rank);
}

void rendezvous::admit(int rank) {
  forget(rank);  // state that was still in use when the rank was lost
  for (transport* const each : all_) each->admit(rank);
}

std::span<transport* const> rendezvous::transports_to(int rank) const {
  constexpr std::size_t kNear = 4;
  const std::span<transport* const> all(all_);
  return context_.peer(rank).is_same_node ? all.first(kNear) : all.subspan(kNear);
}

// ---- The sender

int rendezvous::read_rts(packet& outgoing, std::size_t offset, void* destination, std::size_t bytes) {
  const auto& op = *static_cast<const operation*>(outgoing.owner);
  std::memcpy(destination, reinterpret_cast<const std::byte*>(&op.transfer->rts) + offset, bytes);
  return 0;
}

// The driver's description of the memory; empty for host memory.
std::optional<cu::pointer_info> rendezvous::describe_gpu(const memory& range, transfer_state& described) {
  described.access = context_.touch_of(range);
  if (!range.is_device) return std::nullopt;
  const auto info =
      range.device.device_ordinal >= 0 ? std::optional(range.device) : cu::find_device_memory(*context_.cuda, range.address);
  if (info) described.device_ordinal = info->device_ordinal;
  return info;
}

void rendezvous::send_rts(operation& op, frame_kind kind) {
  op.transfer = std::make_unique<transfer_state>();
  auto& rts = op.transfer->rts;
  rts.is_device = op.range.is_device;
  const auto info = describe_gpu(op.range, *op.transfer);
  if (const auto& queue = context_.peer(op.peer).queue_out; queue.is_open()) rts.withdrawals = queue.withdrawals();
  for (transport* const each : transports_to(op.peer)) each->offer(op, info, rts);
  op.out.head.tag = op.tag;
  op.out.head.bytes = op.bytes;
  if (op.out.in_place != nullptr) return channel_.send_operation(op, kind, 0, nullptr, &ucx_rndv::on_in_place_sent);
  channel_.send_operation(op, kind, sizeof rts, &read_rts);
}

void rendezvous::send_rts_again(operation& op) {
  auto& rts = op.transfer->rts;
  op.out.in_place = nullptr;
  rts.is_staged = true;
  op.out.payload = sizeof rts;
  op.out.plain = &rts;
  op.out.read = &read_rts;
  op.out.done = &packet_channel::on_operation_sent;
  op.is_sending = true;
  channel_.fabric()->send(op.peer, op.out);
}

// The transport of this kind, with which the sender moves the bytes; null: none.
transport* rendezvous::sender_of(transport_kind kind) {
  if (kind == transport_kind::shm) return &shm_;
  return kind == transport_kind::ucx && channel_.fabric() != nullptr ? &ucx_ : nullptr;
}

void rendezvous::on_rtr(peer_state& source, const frame& head, const rtr_body& request) {
  operation* const op = context_.operations.find(head.peer_op);
  transport* const chosen = sender_of(request.transport);
  const bool is_valid = op != nullptr && op->state == operation_state::waiting && op->transfer != nullptr &&
                        op->peer == source.rank && request.bytes <= op->bytes && chosen != nullptr;
  if (!is_valid) return channel_.send_control(source.rank, {.kind = frame_kind::ats, .code = ECANCELED, .peer_op = head.op});
  op->state = operation_state::moving;
  op->peer_op = head.op;
  op->transfer->active = chosen;
  op->transfer->wanted = request.bytes;
  chosen->start_send(*op, request);
}

void rendezvous::on_parts(const peer_state& source, const frame& head) {
  operation* const op = context_.operations.find(head.peer_op);
  const bool is_valid = op != nullptr && op->peer == source.rank && op->state == operation_state::moving &&
                        op->transfer != nullptr && op->transfer->active == &ucx_ && !op->transfer->is_receive;
  if (is_valid) ucx_rndv::raise_grant(*op, head.tag);
}

void rendezvous::finish_send(operation& op) {
  const auto& state = *op.transfer;
  if (op.kind != operation_kind::put || state.code != 0) return context_.end(op, state.code, state.message);
  if (state.is_confirmed)
    return context_.end(op, state.confirmed_code, state.confirmed_code == 0 ? "" : "the target's side failed");
  op.state = operation_state::waiting;  // for the answer of the target
}

// ---- The receiver

void rendezvous::start_receive(operation& receive, int source_rank, const rts_body& rts, std::uint64_t bytes,
                               std::uint64_t sender_op, remote_data data) {
  receive.peer = source_rank;
  receive.peer_op = sender_op;
  receive.bytes = bytes;
  receive.moved = std::min<std::uint64_t>(bytes, receive.range.bytes);
  receive.state = operation_state::moving;
  receive.transfer = std::make_unique_for_overwrite<transfer_state>();  // its constructor is enough: no padding travels
  receive.transfer->wanted = receive.moved;
  receive.transfer->is_receive = true;
  receive.transfer->data = std::move(data);
  receive.transfer->withdrawals = rts.withdrawals;
  describe_gpu(receive.range, *receive.transfer);
  if (receive.moved == 0) return finish_receive(receive, 0);
  if (!start_with(transports_to(source_rank), receive, rts)) refuse_receive(receive);
}

void rendezvous::start_behind(operation& receive, const transport& refused, const rts_body& rts) {
  const auto choices = transports_to(receive.peer);
  const auto found = std::find(choices.begin(), choices.end(), &refused);
  if (!start_with({found + 1, choices.end()}, receive, rts)) refuse_receive(receive);
}

bool rendezvous::start_with(std::span<transport* const> choices, operation& receive, const rts_body& rts) {
  for (transport* const each : choices) {
    receive.transfer->active = each;
    if (each->start_receive(receive, rts)) return true;
  }
  receive.transfer->active = nullptr;
  return false;
}

void rendezvous::refuse_receive(operation& receive) {
  finish_receive(
      receive, ENOMEM,
      format("no shared memory is available for a message from rank %d: this process or that one may have no free "
             "descriptor (ulimit -n) or memory, or may not open the other's files",
             receive.peer));
}

void rendezvous::send_rtr(operation& receive, const rtr_body& request) {
  channel_.send_control(receive.peer, {.kind = frame_kind::rtr, .op = receive.id(), .peer_op = receive.peer_op}, &request,
                        sizeof request);
}

void rendezvous::finish_receive(operation& op, int code, std::string message) {
  const bool is_deposit = op.kind == operation_kind::deposit;
  const transport* const used = op.transfer->active;
  if (is_deposit || used == nullptr || used->awaits_ats())
    channel_.send_control(op.peer, {.kind = frame_kind::ats, .code = code, .peer_op = op.peer_op});
  if (code == 0 && op.bytes > op.range.bytes)
    return context_.end(
        op, EMSGSIZE,
        format("a message of %llu bytes for a buffer of %zu", static_cast<unsigned long long>(op.bytes), op.range.bytes));
  context_.end(op, code, std::move(message));
}

void rendezvous::finish_read(operation& op, int code, std::string message) {
  auto& state = *op.transfer;
  const auto& source = context_.peer(op.peer);
  const bool is_sure = !source.queue_in.is_open() || source.queue_in.withdrawals() == state.withdrawals;
  if (code != 0 || is_sure || source.is_dead) return finish_receive(op, code, std::move(message));
  state.is_checked = true;
  channel_.send_control(op.peer, {.kind = frame_kind::check, .op = op.id(), .peer_op = op.peer_op});
}

void rendezvous::on_check(const peer_state& source, const frame& head) {
  const operation* const op = context_.operations.find(head.peer_op);
  const bool holds = op != nullptr && op->peer == source.rank && op->state == operation_state::waiting &&
                     op->transfer != nullptr && !op->transfer->is_revoked;
  channel_.send_control(source.rank, {.kind = frame_kind::checked, .code = holds ? 0 : ECANCELED, .peer_op = head.op});
}

void rendezvous::on_checked(const peer_state& source, const frame& head) {
  operation* const op = context_.operations.find(head.peer_op);
  const bool is_asked =
      op != nullptr && op->peer == source.rank && !op->has_ended() && op->transfer != nullptr && op->transfer->is_checked;
  if (is_asked) finish_receive(*op, head.code, head.code == 0 ? "" : kTakenBack);
}

// ---- Both

bool rendezvous::must_poll() const {
  return std::any_of(all_.begin(), all_.end(), [](const transport* each) { return each->is_busy() && each->must_poll(); });
}

void rendezvous::advance_busy() {
  for (transport* const each : all_)
    if (each->is_busy()) each->advance();
}

void rendezvous::on_ats(const frame& head) {
  operation* const op = context_.operations.find(head.peer_op);
  if (op == nullptr || op->has_ended() || op->kind == operation_kind::unexpected) return;
  if (op->state == operation_state::moving && op->transfer != nullptr) {
    if (op->kind == operation_kind::put) {
      op->transfer->is_confirmed = true;
      op->transfer->confirmed_code = head.code;
    }
    // The other side has ended the transfer, or rejects the RTR.
    if (head.code != 0 && !op->transfer->is_checked)
      op->transfer->active->abort(*op, {abort_cause::refused, head.code, refusal_text(*op, head.code)});
    return;
  }
  if (op->is_sending && op->out.in_place != nullptr) {
    op->transfer->is_confirmed = true;  // the send ends when UCX completes it: until then the peer may read the memory
    op->transfer->confirmed_code = head.code;
    return;
  }
  context_.end(*op, head.code, refusal_text(*op, head.code));
}

// Ends a message that was read completely and waits only for the confirmation of its sender, which will not arrive.
bool rendezvous::abort_lost(operation& op, const std::string& reason) {
  if (op.state != operation_state::moving || op.transfer == nullptr || op.transfer->is_checked) return false;
  op.transfer->active->abort(op, {abort_cause::peer_lost, ECONNRESET, reason});
  return true;
}

}  // namespace pl::messaging
