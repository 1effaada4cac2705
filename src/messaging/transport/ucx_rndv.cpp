// SPDX-License-Identifier: Apache-2.0
// Rendezvous through UCX. With RDMA a message from host memory uses UCX's own rendezvous in place, with no more packets
// than UCX alone needs. All others are sent as tagged parts. Between host memories the parts lie in the messages' own
// memory, and one part is the whole message where that is fastest; the same holds for GPU memory if UCX has RDMA lanes
// for it. Otherwise the parts pass through pinned chunks in a pipeline: while one is copied from the GPU, another is on
// the wire, and a third is copied to the other GPU.
#include <algorithm>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::messaging {

// ---- Both sides

void messenger_core::on_part(ucx_part& bulk, int code, std::size_t bytes) {
  auto& part = static_cast<transfer_state::part&>(bulk);
  if (part.op == nullptr) return;  // abandoned
  auto& state = *part.op->transfer;
  part.is_busy = false;
  part.is_arrived = true;
  part.code = code;
  const bool is_short = bulk.is_receive && code == 0 && bytes != part.bytes;
  if (state.code != 0 || (code == 0 && !is_short)) return;
  state.code = is_short ? EIO : code;
  state.message =
      is_short ? "the sender could not read the memory of its message" : "UCX could not move a part of the message";
}

void messenger_core::abandon_parts(operation& op) {
  for (auto& part : *op.transfer->parts)
    if (part.is_busy) channel_.fabric()->cancel_tagged(part);
}

// Some versions of UCX never complete a part whose peer has died. Nothing can arrive for it any more, so the operation
// ends, and memory that UCX may still access is kept until it closes. True: `op` has ended.
bool messenger_core::give_up(operation& op) {
  constexpr std::uint64_t kGraceNs = 200'000'000;
  auto& state = *op.transfer;
  if (state.lost_ns == 0 || state.parts_busy == 0 || monotonic_ns() - state.lost_ns < kGraceNs) return false;
  for (auto& part : *state.parts) {
    if (part.copy.is_pending) return false;  // our own copy: it will end
    part.op = nullptr;
  }
  moving_.remove(&op);
  const int code = state.code;
  std::string message = std::move(state.message);
  state.data.reset();
  given_up_.push_back(std::move(op.transfer));
  context_.end(op, code, std::move(message));
  return true;
}

void messenger_core::end_part(operation& op, transfer_state::part& part) {
  auto& state = *op.transfer;
  if (part.chunk != nullptr) pinned_->give_back(std::exchange(part.chunk, nullptr));
  part.is_arrived = false;
  part.op = nullptr;
  --state.parts_busy;
  state.ended += part.bytes;
}

// ---- By UCX's rendezvous: the announcement is its request to send. The receiver has UCX fetch the message if it is for
// host memory and fits there; else it orders parts, as of other announcements, and lets go of UCX's at the end. Either way
// the send ends when UCX does.

bool messenger_core::uses_ucx_rendezvous(int destination_rank, const memory& source) const {
  if (source.is_device || channel_.fabric() == nullptr ||
      context_.peers[static_cast<std::size_t>(destination_rank)].is_same_node)
    return false;
  using transport = messenger_options::rendezvous_t;
  return context_.options.rendezvous == transport::always ||
         (context_.options.rendezvous == transport::automatic && channel_.fabric()->has_rdma_lane(destination_rank));
}

void messenger_core::send_rts_in_place(operation& op, frame_kind kind) {
  op.out.head.tag = op.tag;
  op.out.head.bytes = op.bytes;
  op.out.head.is_remote = 1;
  op.out.in_place = copy::host_pointer(op.range.address);
  op.out.in_place_bytes = op.bytes;
  op.transfer->core = this;
  channel_.send_operation(op, kind, 0, nullptr, &messenger_core::on_in_place_sent);
}

void messenger_core::on_in_place_sent(packet& outgoing, int code) {
  auto& op = *static_cast<operation*>(outgoing.owner);
  if (packet_channel::note_sent(op)) op.transfer->core->on_in_place_done(op, code);
}

void messenger_core::on_in_place_done(operation& op, int code) {
  auto& state = *op.transfer;
  if (code == kNotInPlace && op.state == operation_state::waiting) {
    // The same RTS without UCX's rendezvous. Its credit cost stays that of the first one.
    op.out.in_place = nullptr;
    state.rts.is_staged = true;
    op.out.payload = sizeof state.rts;
    op.out.plain = &state.rts;
    op.out.read = &read_rts;
    op.out.done = &packet_channel::on_operation_sent;
    op.is_sending = true;
    return channel_.fabric()->send(op.peer, op.out);
  }
  if (code != 0 && state.code == 0) state.code = code, state.message = "the peer is gone";
  if (op.state == operation_state::moving) return;                     // the parts end it
  if (code == 0 && state.is_retracted && !state.is_confirmed) return;  // received or dropped: the receiver's ATS follows
  if (code == 0 && state.is_retracted)
    return context_.end(op, state.confirmed_code, state.confirmed_code == 0 ? "" : "cancelled");
  ++context_.counts.ucx_direct;
  g_live_network.add(op.bytes);
  finish_send(op);
}

void messenger_core::receive_in_place(operation& receive) {
  auto& state = *receive.transfer;
  state.make_parts();
  auto& whole = state.parts->front();
  whole.op = &receive;
  whole.bytes = state.chunk = state.started = state.granted = state.wanted;
  whole.is_busy = state.is_direct = true;
  whole.done = &messenger_core::on_part;
  state.parts_busy = 1;
  moving_.push_back(&receive);
  channel_.fabric()->receive_remote(std::move(state.data), copy::host_pointer(receive.range.address), state.wanted, whole);
}

// ---- Sending

void messenger_core::start_ucx_send(operation& op, const rtr_body& order) {
  auto& state = *op.transfer;
  state.make_parts();
  state.chunk = order.chunk_bytes;
  state.first_tag = order.first_tag;
  state.granted = order.granted;
  state.is_raw_gpu = order.is_raw_gpu && op.range.is_device;
  state.is_direct = !(op.range.is_device || state.rts.is_staged) || state.is_raw_gpu;
  if (state.chunk == 0 || (!state.is_direct && state.chunk > pinned_->chunk_bytes())) {
    state.code = EPROTO;
    state.wanted = 0;
  }
  state.is_direct ? ++context_.counts.ucx_direct : ++context_.counts.network_ring;
  g_live_network.add(state.wanted);
  moving_.push_back(&op);
  advance_ucx_send(op);
}

void messenger_core::on_parts(const peer_state& source, const frame& head) {
  operation* const op = context_.operations.find(head.peer_op);
  const bool is_valid = op != nullptr && op->peer == source.rank && op->state == operation_state::moving &&
                        op->transfer != nullptr && op->transfer->transport == transport_kind::ucx &&
                        !op->transfer->is_receive;
  if (is_valid) op->transfer->granted = std::max(op->transfer->granted, head.tag);
}

void messenger_core::advance_ucx_send(operation& op) {
  if (give_up(op)) return;
  auto& state = *op.transfer;
  const auto may_start = std::min(state.wanted, state.granted);
  for (auto& part : *state.parts) {
    if (part.op != nullptr && part.is_filling) {
      const auto done = copy_ended(part.copy);
      if (!done) continue;
      if (!*done && state.code == 0) state.code = done->code(), state.message = done->error().message;
      send_part(op, part);
    }
    if (part.op != nullptr && part.is_arrived) end_part(op, part);
    if (part.op == nullptr && state.started < may_start && !context_.peer(op.peer).is_dead && !fill_part(op, part)) break;
  }
  const bool is_dead = context_.peer(op.peer).is_dead;
  const bool is_over = state.parts_busy == 0 && (state.ended >= state.wanted || is_dead || state.is_withdrawn);
  const bool is_with_ucx = op.is_sending && op.out.in_place != nullptr && !is_dead;
  if (!is_over || is_with_ucx) return;
  moving_.remove(&op);
  finish_send(op);
}

// False: no chunk is free now.
bool messenger_core::fill_part(operation& op, transfer_state::part& part) {
  auto& state = *op.transfer;
  std::byte* const chunk = state.is_direct ? nullptr : pinned_->take(state.device_ordinal);
  if (!state.is_direct && chunk == nullptr) return false;
  part.chunk = chunk;
  part.op = &op;
  part.offset = state.started;
  part.bytes = std::min(state.chunk, state.wanted - state.started);
  part.is_arrived = false;
  part.is_filling = true;
  state.started += part.bytes;
  ++state.parts_busy;
  status begun;
  if (chunk != nullptr && state.code == 0)
    begun = begin_copy(part.copy, op.range, part.offset, chunk, part.bytes, true, state.access);
  if (!begun) state.code = begun.code(), state.message = begun.error().message;
  if (!part.copy.is_pending) send_part(op, part);
  return true;
}

// A part that could not be read is sent empty, because the receiver waits for it.
void messenger_core::send_part(operation& op, transfer_state::part& part) {
  auto& state = *op.transfer;
  part.is_filling = false;
  part.is_busy = true;
  part.done = &messenger_core::on_part;
  const void* const source = part.chunk != nullptr ? part.chunk : copy::host_pointer(op.range.address + part.offset);
  const std::uint64_t tag = state.first_tag + part.offset / state.chunk;
  channel_.fabric()->send_tagged(op.peer, tag, source, state.code == 0 ? part.bytes : 0, state.is_raw_gpu, part);
}

// ---- Receiving

void messenger_core::start_ucx_receive(operation& receive, const peer_state& source, const rts_body& rts) {
  auto& state = *receive.transfer;
  if (!state.data.is_empty() && !receive.range.is_device && receive.moved == receive.bytes) return receive_in_place(receive);
  state.make_parts();
  const bool has_gpu_memory = rts.is_device || receive.range.is_device;
  const bool is_raw = has_gpu_memory && source.can_take_gpu_pointers;
  state.is_raw_gpu = is_raw && receive.range.is_device;
  state.is_direct = !receive.range.is_device || is_raw;
  if (is_raw) state.chunk = state.wanted;
  else
    state.chunk = has_gpu_memory || rts.is_staged ? context_.limits.network_chunk_bytes
                                                  : channel_.fabric()->part_bytes_of(state.wanted);
  state.first_tag = fresh_part_tag();
  moving_.push_back(&receive);
  post_parts(receive);
  state.granted = state.started;
  send_rtr(receive, {transport_kind::ucx, receive.range.is_device, is_raw, state.wanted, state.chunk, state.first_tag,
                     state.granted});
}

void messenger_core::post_parts(operation& op) {
  auto& state = *op.transfer;
  for (auto& part : *state.parts) {
    if (part.op != nullptr) continue;
    if (state.started >= state.wanted || state.is_withdrawn || context_.peer(op.peer).is_dead) return;
    if (!state.is_direct && !state.is_revoked && (part.chunk = pinned_->take(state.device_ordinal)) == nullptr) return;
    post_part(op, part);
  }
}

void messenger_core::post_part(operation& op, transfer_state::part& part) {
  auto& state = *op.transfer;
  part.op = &op;
  part.offset = state.started;
  part.bytes = std::min(state.chunk, state.wanted - state.started);
  part.is_busy = true;
  part.is_arrived = part.is_filling = false;
  part.done = &messenger_core::on_part;
  state.started += part.bytes;
  ++state.parts_busy;
  if (state.is_revoked) return post_scratch(op, part);
  part.is_scratch = false;
  void* const destination = part.chunk != nullptr ? part.chunk : copy::host_pointer(op.range.address + part.offset);
  channel_.fabric()->receive_tagged(state.first_tag + part.offset / state.chunk, destination, part.bytes, state.is_raw_gpu,
                                    part);
}

// Receives a part whose memory was taken back: UCX drops the bytes that do not fit into the scratch buffer.
void messenger_core::post_scratch(operation& op, transfer_state::part& part) {
  auto& state = *op.transfer;
  part.is_busy = part.is_scratch = true;
  part.is_arrived = false;
  channel_.fabric()->receive_tagged(state.first_tag + part.offset / state.chunk, state.scratch.data(), state.scratch.size(),
                                    false, part);
}

void messenger_core::advance_ucx_receive(operation& op) {
  if (give_up(op)) return;
  auto& state = *op.transfer;
  for (auto& part : *state.parts) {
    const bool is_cancelled = state.is_revoked && part.op != nullptr && part.is_arrived && !part.is_scratch &&
                              part.code == ECANCELED && !context_.peer(op.peer).is_dead && !state.is_withdrawn;
    if (is_cancelled) post_scratch(op, part);
    if (part.op != nullptr && part.is_arrived && !part.is_filling) {
      part.is_filling = true;
      part.copy.is_pending = false;
      status begun;
      if (part.chunk != nullptr && state.code == 0)
        begun = begin_copy(part.copy, op.range, part.offset, part.chunk, part.bytes, false, state.access);
      if (!begun) state.code = begun.code(), state.message = begun.error().message;
    }
    if (part.op != nullptr && part.is_filling) {
      const auto done = copy_ended(part.copy);
      if (!done) continue;
      if (!*done && state.code == 0) state.code = done->code(), state.message = done->error().message;
      part.is_filling = false;
      end_part(op, part);
    }
  }
  post_parts(op);
  if (state.started > state.granted) {
    state.granted = state.started;
    channel_.send_control(op.peer, {.kind = frame_kind::parts, .tag = state.granted, .peer_op = op.peer_op});
  }
  const bool is_over =
      state.parts_busy == 0 && (state.ended >= state.wanted || state.is_withdrawn || context_.peer(op.peer).is_dead);
  if (!is_over) return;
  moving_.remove(&op);
  const int code = state.code;
  finish_receive(op, code, std::move(state.message));
}

}  // namespace pl::messaging
