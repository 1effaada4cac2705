// SPDX-License-Identifier: Apache-2.0
// Rendezvous: the sender's RTS names the ways to reach its memory. The receiver knows both memories and chooses the
// transport.
#include "messaging/rndv.hpp"

#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::messaging {

// ---- The sender

int messenger_core::read_rts(packet& outgoing, std::size_t offset, void* destination, std::size_t bytes) {
  const auto& op = *static_cast<const operation*>(outgoing.owner);
  std::memcpy(destination, reinterpret_cast<const std::byte*>(&op.transfer->rts) + offset, bytes);
  return 0;
}

// The driver's description of the memory; null for host memory.
std::optional<cu::pointer_info> messenger_core::describe_gpu(const memory& range, transfer_state& into) {
  into.access = context_.touch_of(range);
  if (!range.is_device) return std::nullopt;
  const auto info =
      range.device.device_ordinal >= 0 ? std::optional(range.device) : cu::find_device_memory(*context_.cuda, range.address);
  if (info) into.device_ordinal = info->device_ordinal;
  return info;
}

void messenger_core::send_rts(operation& op, frame_kind kind) {
  op.transfer = std::make_unique<transfer_state>();
  auto& rts = op.transfer->rts;
  auto& destination = context_.peer(op.peer);
  if (uses_ucx_rendezvous(op)) return send_rts_in_place(op, kind);
  rts.is_device = op.range.is_device;
  const auto info = describe_gpu(op.range, *op.transfer);
  if (destination.is_same_node && open_ring_out(destination)) {
    rts.has_ring = true;
    rts.ring = destination.outbound.ring->own_name();
  }
  if (destination.is_same_node && context_.options.use_cma && !op.range.is_device) {
    rts.has_cma = true;
    rts.address = op.range.address;
  }
  if (destination.queue_out.is_open()) rts.withdrawals = destination.queue_out.withdrawals();
  if (destination.is_same_node && context_.options.use_ipc && info && op.bytes >= context_.limits.ipc_from) {
    if (const auto handle = ipc_.export_handle(*info)) {
      rts.has_ipc = true;
      rts.ipc = *handle;
      rts.buffer_id = info->buffer_id;
      rts.ipc_offset = op.range.address - info->allocation.begin;
    }
  }
  op.out.head.tag = op.tag;
  op.out.head.bytes = op.bytes;
  channel_.send_operation(op, kind, sizeof rts, &read_rts);
}

void messenger_core::on_rtr(peer_state& source, const frame& head, const rtr_body& order) {
  operation* const op = context_.operations.find(head.peer_op);
  const bool is_valid = op != nullptr && op->state == operation_state::waiting && op->transfer != nullptr &&
                        op->peer == source.rank && order.bytes <= op->bytes;
  if (!is_valid) return channel_.send_control(source.rank, {.kind = frame_kind::ats, .code = ECANCELED, .peer_op = head.op});
  auto& state = *op->transfer;
  op->state = operation_state::moving;
  op->peer_op = head.op;
  state.transport = order.transport;
  state.wanted = order.bytes;
  if (order.transport == transport_kind::shm) {
    ++context_.counts.shared_ring;
    g_live_shared_ring.add(order.bytes);
    state.is_for_device = order.receiver_is_device;
    source.fill_queue.push_back(op);
    if (std::find(ring_peers_.begin(), ring_peers_.end(), source.rank) == ring_peers_.end())
      ring_peers_.push_back(source.rank);
  } else {
    start_ucx_send(*op, order);
  }
}

constexpr const char* kWindowEnded = "the target has ended its window while this was under way";

// ATS at either side: ends the operation that waits for it.
void messenger_core::on_ats(const frame& head) {
  operation* const op = context_.operations.find(head.peer_op);
  if (op == nullptr || op->has_ended() || op->kind == operation_kind::unexpected) return;
  if (op->state == operation_state::moving && op->transfer != nullptr) {
    auto& state = *op->transfer;
    if (op->kind == operation_kind::put) {
      state.is_confirmed = true;
      state.confirmed_code = head.code;
      if (head.code != 0 && state.transport == transport_kind::ucx && state.code == 0) {
        state.code = head.code;
        state.message = kWindowEnded;
      }
      return;
    }
    if (!state.is_receive && head.code != 0 && state.transport == transport_kind::ucx && state.code == 0)
      state.code = head.code;  // the receiver wants no more: what it waits for comes empty
    if (head.code == 0 || !state.is_receive) return;
    // The sender rejects the RTR.
    state.code = head.code;
    if (state.transport == transport_kind::ucx) {
      state.is_withdrawn = true;
      return abandon_parts(*op);
    }
    --context_.peer(op->peer).inbound.expected;
  } else if (op->is_sending && op->out.in_place != nullptr) {
    op->transfer->is_confirmed = true;  // UCX has the last word: until then its peer may read the memory
    op->transfer->confirmed_code = head.code;
    return;
  }
  const bool is_of_window = op->kind == operation_kind::put || op->kind == operation_kind::get;
  context_.end(*op, head.code,
               head.code == 0           ? ""
               : head.code != ECANCELED ? "the receiver's side failed"
               : is_of_window           ? kWindowEnded
                                        : "cancelled");
}

// All data has left, or could not be read.
void messenger_core::finish_send(operation& op) {
  const auto& state = *op.transfer;
  if (op.kind != operation_kind::put || state.code != 0) return context_.end(op, state.code, state.message);
  if (state.is_confirmed)
    return context_.end(op, state.confirmed_code, state.confirmed_code == 0 ? "" : "the target's side failed");
  op.state = operation_state::waiting;  // for the target's word
}

// ---- The receiver

transport_kind messenger_core::choose_transport(const operation& receive, const peer_state& source, const rts_body& rts) {
  if (!source.is_same_node) return transport_kind::ucx;
  const std::size_t ipc_from =
      std::max(receive.range.is_device ? context_.limits.ipc_from : context_.limits.ipc_to_host_from,
               context_.is_gpu_shared ? context_.limits.shared_gpu_cpu_limit + 1 : 0);
  const bool can_ipc = rts.has_ipc && context_.options.use_ipc && context_.buffers.has_gpu();
  if (can_ipc && (receive.moved >= ipc_from || !rts.has_ring)) return transport_kind::cuda_ipc;
  if (rts.has_cma && !receive.range.is_device && context_.options.use_cma && !source.refuses_cma) return transport_kind::cma;
  return rts.has_ring ? transport_kind::shm : transport_kind::none;
}

void messenger_core::receive_rendezvous(operation& receive, int source_rank, const rts_body& rts, std::uint64_t bytes,
                                        std::uint64_t sender_op, remote_data data) {
  auto& source = context_.peer(source_rank);
  receive.peer = source_rank;
  receive.peer_op = sender_op;
  receive.bytes = bytes;
  receive.moved = std::min<std::uint64_t>(bytes, receive.range.bytes);
  receive.state = operation_state::moving;
  receive.transfer = std::make_unique<transfer_state>();
  receive.transfer->wanted = receive.moved;
  receive.transfer->is_receive = true;
  receive.transfer->data = std::move(data);
  receive.transfer->withdrawals = rts.withdrawals;
  describe_gpu(receive.range, *receive.transfer);
  if (receive.moved == 0) return finish_receive(receive, 0);
  const auto transport = receive.transfer->transport = choose_transport(receive, source, rts);
  if (transport == transport_kind::cuda_ipc && start_cuda_ipc(receive, rts)) return;
  if (transport == transport_kind::cma) return start_cma(receive, rts);
  if (transport == transport_kind::ucx) return start_ucx_receive(receive, source, rts);
  start_ring(receive, source, rts);
}

void messenger_core::send_rtr(operation& receive, const rtr_body& request) {
  channel_.send_control(receive.peer, {.kind = frame_kind::rtr, .op = receive.id(), .peer_op = receive.peer_op}, &request,
                        sizeof request);
}

// Ends the receiving side, and sends an ATS if the sender waits for one.
void messenger_core::finish_receive(operation& op, int code, std::string message) {
  const bool is_deposit = op.kind == operation_kind::deposit;
  const auto transport = op.transfer->transport;
  // A send through the ring or UCX ends by itself when its last byte has left.
  if (is_deposit || (transport != transport_kind::shm && transport != transport_kind::ucx))
    channel_.send_control(op.peer, {.kind = frame_kind::ats, .code = code, .peer_op = op.peer_op});
  if (code == 0 && op.bytes > op.range.bytes)
    return context_.end(
        op, EMSGSIZE,
        format("a message of %llu bytes for a buffer of %zu", static_cast<unsigned long long>(op.bytes), op.range.bytes));
  context_.end(op, code, std::move(message));
}

// ---- Progress

void messenger_core::advance() {
  if (!ready_.empty()) submit_copies();
  cma_budget_ = kMaxCmaBytesPerRound;
  if (cma_receives_ > 1) read_together();
  for (operation* current = moving_.first(); current != nullptr;) {
    operation* const next = moving_.next(current);
    const auto transport = current->transfer->transport;
    if (transport == transport_kind::cuda_ipc) advance_cuda_ipc(*current);
    else if (transport == transport_kind::cma) advance_cma(*current);
    else if (current->transfer->is_receive) advance_ucx_receive(*current);
    else advance_ucx_send(*current);
    current = next;
  }
}

// ---- Copies between a message's memory and a chunk

status messenger_core::begin_copy(chunk_copy& copy, const memory& range, std::uint64_t offset, void* chunk,
                                  std::size_t bytes, bool to_chunk, touch access) {
  copy.is_pending = false;
  // The CPU copies small ones, and those that must not use a copy engine, at once.
  constexpr std::size_t kAtOnce = 16 << 10;
  const bool by_cpu = access == touch::cpu_only && range.bytes <= context_.limits.shared_gpu_cpu_limit;
  if (!range.is_device || bytes <= kAtOnce || by_cpu) {
    const auto touched = by_cpu ? touch::cpu_only : touch::any;
    return to_chunk ? context_.buffers.read(range, offset, chunk, bytes, touched)
                    : context_.buffers.write(range, offset, chunk, bytes, touched);
  }
  const copy::transfer transfer =
      to_chunk ? copy::transfer{copy::direction::to_host, copy::address_of(chunk), range.address + offset, bytes}
               : copy::transfer{copy::direction::to_device, range.address + offset, copy::address_of(chunk), bytes};
  auto begun = context_.buffers.planner()->begin(std::span(&transfer, 1), {});
  if (!begun) return std::move(begun).error();
  copy.pending = *std::move(begun);
  copy.is_pending = true;
  return {};
}

// Empty while it is pending.
std::optional<status> messenger_core::copy_ended(chunk_copy& copy) {
  if (!copy.is_pending) return status{};
  const auto done = copy.pending.test();
  if (done && !*done) return std::nullopt;
  copy.is_pending = false;
  copy.pending = {};
  if (!done) return status{done.error()};
  return status{};
}

}  // namespace pl::messaging
