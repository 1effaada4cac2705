// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/ucx_rndv.hpp"

#include <algorithm>
#include <cerrno>

#include "base/clock.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/rndv.hpp"

namespace pl::messaging {

ucx_rndv::ucx_rndv(rendezvous& owner) : transport(owner, false) {}
ucx_rndv::~ucx_rndv() = default;

void ucx_rndv::open() { pinned_.emplace(context_.buffers.planner(), context_.limits.network_chunk_bytes); }

// ---- Both sides

void ucx_rndv::on_part(ucx_part& bulk, int code, std::size_t bytes) {
  auto& part = static_cast<tagged_part&>(bulk);
  if (part.op == nullptr) return;  // abandoned
  auto& state = *part.op->transfer;
  part.is_busy = false;
  part.is_arrived = true;
  part.code = code;
  const bool is_short = bulk.is_receive && code == 0 && bytes != part.bytes;
  if (is_short) state.fail(EIO, "the sender could not read the memory of its message");
  else if (code != 0 && state.code == 0) state.fail(code, "UCX could not move a part of the message");
}

void ucx_rndv::end_part(operation& op, tagged_part& part) {
  if (part.chunk != nullptr) pinned_->give_back(std::exchange(part.chunk, nullptr));
  part.is_arrived = false;
  part.op = nullptr;
  context_.wake.note();
  --slice_of<ucx_transfer>(op).parts_busy;
  op.transfer->ended += part.bytes;
}

void ucx_rndv::advance() {
  for (operation* current = moving_.first(); current != nullptr;) {
    operation* const next = moving_.next(current);
    if (current->transfer->is_receive) advance_receive(*current);
    else advance_send(*current);
    current = next;
  }
}

// True for copies of a GPU, and while waiting for UCX to release parts of a lost peer.
bool ucx_rndv::must_poll() const {
  for (const operation* current = moving_.first(); current != nullptr; current = moving_.next(current)) {
    const auto& slice = slice_of<ucx_transfer>(*current);
    if (slice.lost_ns != 0) return true;
    if (slice.parts != nullptr && std::any_of(slice.parts->begin(), slice.parts->end(),
                                              [](const tagged_part& part) { return part.op != nullptr && part.is_filling; }))
      return true;
  }
  return false;
}

// ---- With UCX's rendezvous: our RTS is UCX's request to send. The receiver lets UCX fetch the message if it goes to host
// memory and fits. Otherwise it requests parts, as for any other RTS, and releases UCX's handle at the end. In both cases
// the send ends when UCX completes it.

bool ucx_rndv::moves_in_place(int rank, const memory& source) const {
  using choice = messenger_options::rendezvous_t;
  if (source.is_device || !channel_.fabric()->can_send_in_place()) return false;
  const auto wanted = context_.options.rendezvous;
  return wanted == choice::always || (wanted == choice::automatic && channel_.fabric()->has_rdma_lane(rank));
}

void ucx_rndv::offer(operation& send, const std::optional<cu::pointer_info>&, rts_body&) {
  if (!moves_in_place(send.peer, send.range)) return;
  send.transfer->slice.emplace<ucx_transfer>(this);
  send.out.head.is_remote = 1;
  send.out.in_place = copy::host_pointer(send.range.address);
  send.out.in_place_bytes = send.bytes;
}

void ucx_rndv::on_in_place_sent(packet& outgoing, int code) {
  auto& op = *static_cast<operation*>(outgoing.owner);
  if (packet_channel::note_sent(op)) slice_of<ucx_transfer>(op).owner->end_in_place(op, code);
}

void ucx_rndv::end_in_place(operation& op, int code) {
  auto& state = *op.transfer;
  if (code == kNotInPlace && op.state == operation_state::waiting) return rendezvous_.send_rts_again(op);
  if (code != 0) state.fail(code, "the peer is gone");
  if (op.state == operation_state::moving) return;                     // the parts end it
  if (code == 0 && state.is_retracted && !state.is_confirmed) return;  // received or dropped: the receiver's ATS follows
  if (code == 0 && state.is_retracted)
    return context_.end(op, state.confirmed_code, state.confirmed_code == 0 ? "" : "cancelled");
  ++context_.counts.ucx_direct;
  g_live_network.add(op.bytes);
  rendezvous_.finish_send(op);
}

void ucx_rndv::receive_in_place(operation& receive) {
  auto& state = *receive.transfer;
  auto& slice = slice_of<ucx_transfer>(receive);
  auto& whole = slice.parts->front();
  whole.op = &receive;
  whole.bytes = slice.chunk = state.started = slice.granted = state.wanted;
  whole.is_busy = slice.is_direct = true;
  whole.done = &ucx_rndv::on_part;
  slice.parts_busy = 1;
  enter(receive);
  channel_.fabric()->receive_remote(std::move(state.data), copy::host_pointer(receive.range.address), state.wanted, whole);
}

// ---- Sending

bool ucx_rndv::start_send(operation& send, const rtr_body& request) {
  auto& state = *send.transfer;
  auto& slice = state.slice.emplace<ucx_transfer>(this);
  slice.parts = std::make_unique<std::array<tagged_part, kChunksInFlight>>();
  slice.chunk = request.chunk_bytes;
  slice.first_tag = request.first_tag;
  slice.granted = request.granted;
  slice.is_raw_gpu = request.is_raw_gpu && send.range.is_device;
  slice.is_direct = !(send.range.is_device || state.rts.is_staged) || slice.is_raw_gpu;
  if (slice.chunk == 0 || (!slice.is_direct && slice.chunk > pinned_->chunk_bytes())) {
    state.code = EPROTO;
    state.wanted = 0;
  }
  slice.is_direct ? ++context_.counts.ucx_direct : ++context_.counts.network_ring;
  g_live_network.add(state.wanted);
  enter(send);
  advance_send(send);
  return true;
}

void ucx_rndv::raise_grant(operation& send, std::uint64_t granted) {
  auto& slice = slice_of<ucx_transfer>(send);
  slice.granted = std::max(slice.granted, granted);
}

void ucx_rndv::advance_send(operation& op) {
  if (give_up(op)) return;
  auto& state = *op.transfer;
  auto& slice = slice_of<ucx_transfer>(op);
  const bool is_dead = context_.peer(op.peer).is_dead;
  const auto may_start = is_dead ? 0 : std::min(state.wanted, slice.granted);
  for (auto& part : *slice.parts) {
    if (part.op != nullptr && part.is_filling) {
      const auto done = part.copy.test();
      if (!done) continue;
      if (!*done) state.fail(done->code(), done->error().message);
      send_part(op, part);
    }
    if (part.op != nullptr && part.is_arrived) end_part(op, part);
    if (part.op == nullptr && state.started < may_start && !fill_part(op, part)) break;
  }
  const bool is_over = slice.parts_busy == 0 && (state.ended >= state.wanted || is_dead || slice.is_withdrawn);
  const bool is_with_ucx = op.is_sending && op.out.in_place != nullptr && !is_dead;
  if (!is_over || is_with_ucx) return;
  leave(op);
  rendezvous_.finish_send(op);
}

// False: no chunk is free.
bool ucx_rndv::fill_part(operation& op, tagged_part& part) {
  auto& state = *op.transfer;
  auto& slice = slice_of<ucx_transfer>(op);
  std::byte* const chunk = slice.is_direct ? nullptr : pinned_->take(state.device_ordinal);
  if (!slice.is_direct && chunk == nullptr) return false;
  part.chunk = chunk;
  part.op = &op;
  part.offset = state.started;
  part.bytes = std::min(slice.chunk, state.wanted - state.started);
  part.is_arrived = false;
  part.is_filling = true;
  state.started += part.bytes;
  ++slice.parts_busy;
  status begun;
  if (chunk != nullptr && state.code == 0)
    begun = part.copy.begin(context_, op.range, part.offset, chunk, part.bytes, chunk_direction::to_chunk, state.access);
  if (!begun) state.fail(begun.code(), begun.error().message);
  if (!part.copy.is_pending) send_part(op, part);
  return true;
}

// A part that could not be read is sent empty, because the receiver waits for it.
void ucx_rndv::send_part(operation& op, tagged_part& part) {
  auto& slice = slice_of<ucx_transfer>(op);
  context_.wake.note();
  part.is_filling = false;
  part.is_busy = true;
  part.done = &ucx_rndv::on_part;
  const void* const source = part.chunk != nullptr ? part.chunk : copy::host_pointer(op.range.address + part.offset);
  const std::uint64_t tag = slice.first_tag + part.offset / slice.chunk;
  channel_.fabric()->send_tagged(op.peer, tag, source, op.transfer->code == 0 ? part.bytes : 0, slice.is_raw_gpu, part);
}

// ---- Receiving

bool ucx_rndv::start_receive(operation& receive, const rts_body& rts) {
  auto& state = *receive.transfer;
  auto& slice = state.slice.emplace<ucx_transfer>(this);
  slice.parts = std::make_unique<std::array<tagged_part, kChunksInFlight>>();
  if (!state.data.is_empty() && !receive.range.is_device && receive.moved == receive.bytes) {
    receive_in_place(receive);
    return true;
  }
  const bool has_gpu_memory = rts.is_device || receive.range.is_device;
  const bool is_raw = has_gpu_memory && context_.peer(receive.peer).can_take_gpu_pointers;
  slice.is_raw_gpu = is_raw && receive.range.is_device;
  slice.is_direct = !receive.range.is_device || is_raw;
  slice.chunk = is_raw                            ? state.wanted
                : has_gpu_memory || rts.is_staged ? context_.limits.network_chunk_bytes
                                                  : channel_.fabric()->part_bytes_of(state.wanted);
  slice.first_tag = fresh_part_tag();
  enter(receive);
  post_parts(receive);
  slice.granted = state.started;
  rendezvous_.send_rtr(receive, {transport_kind::ucx, receive.range.is_device, is_raw, state.wanted, slice.chunk,
                                 slice.first_tag, slice.granted});
  return true;
}

void ucx_rndv::post_parts(operation& op) {
  auto& state = *op.transfer;
  auto& slice = slice_of<ucx_transfer>(op);
  for (auto& part : *slice.parts) {
    if (part.op != nullptr) continue;
    if (state.started >= state.wanted || slice.is_withdrawn || context_.peer(op.peer).is_dead) return;
    if (!slice.is_direct && !state.is_revoked && (part.chunk = pinned_->take(state.device_ordinal)) == nullptr) return;
    post_part(op, part);
  }
}

void ucx_rndv::post_part(operation& op, tagged_part& part) {
  auto& state = *op.transfer;
  auto& slice = slice_of<ucx_transfer>(op);
  context_.wake.note();
  part.op = &op;
  part.offset = state.started;
  part.bytes = std::min(slice.chunk, state.wanted - state.started);
  part.is_busy = true;
  part.is_arrived = part.is_filling = false;
  part.done = &ucx_rndv::on_part;
  state.started += part.bytes;
  ++slice.parts_busy;
  if (state.is_revoked) return post_scratch(op, part);
  part.is_scratch = false;
  void* const destination = part.chunk != nullptr ? part.chunk : copy::host_pointer(op.range.address + part.offset);
  const std::uint64_t tag = slice.first_tag + part.offset / slice.chunk;
  channel_.fabric()->receive_tagged(op.peer, tag, destination, part.bytes, slice.is_raw_gpu, part);
}

// Receives a part whose memory was taken back: UCX drops the bytes that do not fit into the scratch buffer.
void ucx_rndv::post_scratch(operation& op, tagged_part& part) {
  auto& slice = slice_of<ucx_transfer>(op);
  context_.wake.note();
  part.is_busy = part.is_scratch = true;
  part.is_arrived = false;
  const std::uint64_t tag = slice.first_tag + part.offset / slice.chunk;
  channel_.fabric()->receive_tagged(op.peer, tag, slice.scratch.data(), slice.scratch.size(), false, part);
}

void ucx_rndv::advance_receive(operation& op) {
  if (give_up(op)) return;
  auto& state = *op.transfer;
  auto& slice = slice_of<ucx_transfer>(op);
  const bool is_dead = context_.peer(op.peer).is_dead;
  for (auto& part : *slice.parts) {
    const bool is_cancelled = state.is_revoked && part.op != nullptr && part.is_arrived && !part.is_scratch &&
                              part.code == ECANCELED && !is_dead && !slice.is_withdrawn;
    if (is_cancelled) post_scratch(op, part);
    if (part.op != nullptr) empty_part(op, part);
  }
  post_parts(op);
  if (state.started > slice.granted) {
    slice.granted = state.started;
    channel_.send_control(op.peer, {.kind = frame_kind::parts, .tag = slice.granted, .peer_op = op.peer_op});
  }
  const bool is_over = slice.parts_busy == 0 && (state.ended >= state.wanted || slice.is_withdrawn || is_dead);
  if (!is_over) return;
  leave(op);
  rendezvous_.finish_receive(op, state.code, std::move(state.message));
}

// Copies a part that has arrived out of its chunk, and ends it after the copy.
void ucx_rndv::empty_part(operation& op, tagged_part& part) {
  auto& state = *op.transfer;
  if (part.is_arrived && !part.is_filling) {
    part.is_filling = true;
    part.copy.is_pending = false;
    status begun;
    if (part.chunk != nullptr && state.code == 0)
      begun = part.copy.begin(context_, op.range, part.offset, part.chunk, part.bytes, chunk_direction::from_chunk,
                              state.access);
    if (!begun) state.fail(begun.code(), begun.error().message);
  }
  if (!part.is_filling) return;
  const auto done = part.copy.test();
  if (!done) return;
  if (!*done) state.fail(done->code(), done->error().message);
  part.is_filling = false;
  end_part(op, part);
}

// ---- Abort

bool ucx_rndv::abort(operation& op, const abort_reason& reason) {
  switch (reason.cause) {
    case abort_cause::revoked:
      return op.transfer->is_receive ? revoke_receive(op, reason) : revoke_send(op, reason);
    case abort_cause::withdrawn:  // the sender ends what it moves itself
      return false;
    case abort_cause::refused:
      refuse(op, reason);
      return false;
    case abort_cause::peer_lost:
      lose(op, reason);
      return false;
  }
  return false;
}

void ucx_rndv::abandon_parts(operation& op) {
  for (auto& part : *slice_of<ucx_transfer>(op).parts)
    if (part.is_busy) channel_.fabric()->cancel_tagged(part);
}

void ucx_rndv::lose(operation& op, const abort_reason& reason) {
  auto& slice = slice_of<ucx_transfer>(op);
  op.transfer->code = reason.code;
  op.transfer->message = reason.message;
  slice.is_withdrawn = true;
  slice.lost_ns = monotonic_ns();
  abandon_parts(op);
}

void ucx_rndv::refuse(operation& op, const abort_reason& reason) {
  auto& state = *op.transfer;
  if (!state.is_receive) return state.fail(reason.code, reason.message);  // the receiver gets empty parts
  state.code = reason.code;
  state.message = reason.message;
  slice_of<ucx_transfer>(op).is_withdrawn = true;
  abandon_parts(op);
}

// Some versions of UCX never complete a part whose peer has died. Nothing can arrive for it any more, so the operation
// ends, and memory that UCX may still access is kept until it closes. True: `op` has ended.
bool ucx_rndv::give_up(operation& op) {
  constexpr std::uint64_t kGraceNs = 200'000'000;
  auto& state = *op.transfer;
  auto& slice = slice_of<ucx_transfer>(op);
  if (slice.lost_ns == 0 || slice.parts_busy == 0 || monotonic_ns() - slice.lost_ns < kGraceNs) return false;
  for (auto& part : *slice.parts) {
    if (part.copy.is_pending) return false;  // our own copy, which will end
    part.op = nullptr;
  }
  leave(op);
  const int code = state.code;
  std::string message = std::move(state.message);
  state.data.reset();
  given_up_.push_back(std::move(op.transfer));
  context_.end(op, code, std::move(message));
  return true;
}

bool ucx_rndv::revoke_send(operation& op, const abort_reason& reason) {
  op.transfer->fail(reason.code, reason.message);
  const auto& parts = slice_of<ucx_transfer>(op).parts;
  return std::none_of(parts->begin(), parts->end(), [](const tagged_part& each) {
    return each.op != nullptr && (each.is_filling || (each.is_busy && each.chunk == nullptr));
  });
}

bool ucx_rndv::revoke_receive(operation& op, const abort_reason& reason) {
  auto& state = *op.transfer;
  const bool is_first = !std::exchange(state.is_revoked, true);
  state.fail(reason.code, reason.message);
  if (is_first) channel_.send_control(op.peer, {.kind = frame_kind::ats, .code = reason.code, .peer_op = op.peer_op});
  bool is_free = true;
  for (auto& part : *slice_of<ucx_transfer>(op).parts) {
    if (part.op == nullptr || part.is_scratch) continue;
    if (part.is_busy && part.chunk == nullptr) {
      if (is_first) channel_.fabric()->cancel_tagged(part);
      is_free = is_free && !part.is_busy;
    }
    is_free = is_free && !part.copy.is_pending;
  }
  return is_free;
}

}  // namespace pl::messaging
