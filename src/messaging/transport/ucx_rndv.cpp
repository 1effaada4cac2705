// SPDX-License-Identifier: Apache-2.0
// Through UCX. Where it has RDMA, a message from host memory is announced and moved by UCX's own rendezvous, in place: no
// more packets than UCX alone needs. All others go in tagged parts. Between two host memories these lie in the messages'
// own memory, and one part is the whole message where UCX does well with it; so it is with GPU memory where UCX has RDMA
// lanes for it. Otherwise parts pass through pinned chunks, some of them under way at once: while one is copied from the
// GPU, another is on the wire, and a third is copied to the other GPU.
#include <algorithm>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::link {

// ---- Both sides

void engine::on_part(bulk_part& what, int code, std::size_t bytes) {
  auto& part = static_cast<transfer_state::part&>(what);
  if (part.of == nullptr) return;  // given up
  auto& state = *part.of->transfer;
  part.is_busy = false;
  part.is_arrived = true;
  part.code = code;
  const bool is_short = what.is_receive && code == 0 && bytes != part.bytes;
  if (state.code != 0 || (code == 0 && !is_short)) return;
  state.code = is_short ? EIO : code;
  state.message =
      is_short ? "the sender could not read the memory of its message" : "UCX could not move a part of the message";
}

void engine::abandon_parts(operation& of) {
  for (auto& part : *of.transfer->parts)
    if (part.is_busy) fabric_->cancel_bulk(part);
}

// Some versions of UCX never end what a peer had begun when it died. Nothing can arrive for it any more, so the operation
// ends, and what UCX may still look at stays until it closes. True: `of` has ended.
bool engine::give_up(operation& of) {
  constexpr std::uint64_t kGraceNs = 200'000'000;
  auto& state = *of.transfer;
  if (state.lost_ns == 0 || state.parts_busy == 0 || monotonic_ns() - state.lost_ns < kGraceNs) return false;
  for (auto& part : *state.parts) {
    if (part.copy.is_pending) return false;  // a copy of ours: it ends
    part.of = nullptr;
  }
  moving_.remove(&of);
  const int code = state.code;
  std::string message = std::move(state.message);
  state.data.reset();
  given_up_.push_back(std::move(of.transfer));
  end(of, code, std::move(message));
  return true;
}

void engine::end_part(operation& of, transfer_state::part& part) {
  auto& state = *of.transfer;
  if (part.chunk != nullptr) pinned_->give_back(std::exchange(part.chunk, nullptr));
  part.is_arrived = false;
  part.of = nullptr;
  --state.parts_busy;
  state.ended += part.bytes;
}

// ---- By UCX's rendezvous: the announcement is its request to send. The receiver has UCX fetch the message if it is for
// host memory and fits there; else it orders parts, as of other announcements, and lets go of UCX's at the end. Either way
// the send ends when UCX does.

bool engine::is_for_rendezvous(int to, const memory& from) const {
  if (from.is_device || fabric_ == nullptr || peers_[static_cast<std::size_t>(to)].is_same_node) return false;
  using way = messenger_options::rendezvous_t;
  return options_.rendezvous == way::always || (options_.rendezvous == way::automatic && fabric_->has_rdma_lane(to));
}

void engine::announce_in_place(operation& what, frame_kind kind) {
  what.out.head.tag = what.tag;
  what.out.head.bytes = what.bytes;
  what.out.head.is_remote = 1;
  what.out.in_place = copy::host_pointer(what.at.address);
  what.out.in_place_bytes = what.bytes;
  depart_operation(what, kind, 0, nullptr);
}

void engine::on_let_go(operation& of, int code) {
  auto& state = *of.transfer;
  if (code == kNotInPlace && of.state == operation_state::waiting) {
    // The same announcement, without UCX's. The receiver counts its room as if it had come with it.
    of.out.in_place = nullptr;
    state.offer.is_staged = true;
    of.out.payload = sizeof state.offer;
    of.out.plain = &state.offer;
    of.out.read = &read_offer;
    of.is_departing = true;
    return fabric_->send(of.peer, of.out);
  }
  if (code != 0 && state.code == 0) state.code = code, state.message = "the peer is gone";
  if (of.state == operation_state::moving) return;  // in parts, which end it
  if (code == 0 && state.is_retracted && !state.is_confirmed)
    return;  // taken or forgotten: the receiver's word is on its way
  if (code == 0 && state.is_retracted) return end(of, state.confirmed_code, state.confirmed_code == 0 ? "" : "cancelled");
  ++counts_.ucx_direct;
  g_live_network.add(of.bytes);
  finish_send(of);
}

void engine::receive_in_place(operation& to) {
  auto& state = *to.transfer;
  state.make_parts();
  auto& whole = state.parts->front();
  whole.of = &to;
  whole.bytes = state.chunk = state.started = state.granted = state.wanted;
  whole.is_busy = state.is_direct = true;
  whole.done = &engine::on_part;
  state.parts_busy = 1;
  moving_.push_back(&to);
  fabric_->receive_remote(std::move(state.data), copy::host_pointer(to.at.address), state.wanted, whole);
}

// ---- Sending

void engine::start_network_send(operation& what, const start_order& order) {
  auto& state = *what.transfer;
  state.make_parts();
  state.chunk = order.chunk_bytes;
  state.first_tag = order.first_tag;
  state.granted = order.granted;
  state.is_raw_gpu = order.is_raw_gpu && what.at.is_device;
  state.is_direct = !(what.at.is_device || state.offer.is_staged) || state.is_raw_gpu;
  if (state.chunk == 0 || (!state.is_direct && state.chunk > pinned_->chunk_bytes())) {
    state.code = EPROTO;
    state.wanted = 0;
  }
  state.is_direct ? ++counts_.ucx_direct : ++counts_.network_ring;
  g_live_network.add(state.wanted);
  moving_.push_back(&what);
  advance_network_send(what);
}

void engine::on_parts(const peer_state& from, const frame& head) {
  operation* const what = operations_.find(head.peer_op);
  const bool is_valid = what != nullptr && what->peer == from.rank && what->state == operation_state::moving &&
                        what->transfer != nullptr && what->transfer->way == bulk_way::network && !what->transfer->is_receive;
  if (is_valid) what->transfer->granted = std::max(what->transfer->granted, head.tag);
}

void engine::advance_network_send(operation& of) {
  if (give_up(of)) return;
  auto& state = *of.transfer;
  const auto may_start = std::min(state.wanted, state.granted);
  for (auto& part : *state.parts) {
    if (part.of != nullptr && part.is_filling) {
      const auto done = copy_ended(part.copy);
      if (!done) continue;
      if (!*done && state.code == 0) state.code = done->code(), state.message = done->error().message;
      send_part(of, part);
    }
    if (part.of != nullptr && part.is_arrived) end_part(of, part);
    if (part.of == nullptr && state.started < may_start && !peer(of.peer).is_dead && !fill_part(of, part)) break;
  }
  const bool is_dead = peer(of.peer).is_dead;
  const bool is_over = state.parts_busy == 0 && (state.ended >= state.wanted || is_dead || state.is_withdrawn);
  const bool is_with_ucx = of.is_departing && of.out.in_place != nullptr && !is_dead;
  if (!is_over || is_with_ucx) return;
  moving_.remove(&of);
  finish_send(of);
}

// False: there is no chunk free now.
bool engine::fill_part(operation& of, transfer_state::part& part) {
  auto& state = *of.transfer;
  std::byte* const chunk = state.is_direct ? nullptr : pinned_->take(state.device_ordinal);
  if (!state.is_direct && chunk == nullptr) return false;
  part.chunk = chunk;
  part.of = &of;
  part.offset = state.started;
  part.bytes = std::min(state.chunk, state.wanted - state.started);
  part.is_arrived = false;
  part.is_filling = true;
  state.started += part.bytes;
  ++state.parts_busy;
  status begun;
  if (chunk != nullptr && state.code == 0)
    begun = begin_copy(part.copy, of.at, part.offset, chunk, part.bytes, true, state.how);
  if (!begun) state.code = begun.code(), state.message = begun.error().message;
  if (!part.copy.is_pending) send_part(of, part);
  return true;
}

// What could not be read is sent as a part of no bytes: the receiver waits for one.
void engine::send_part(operation& of, transfer_state::part& part) {
  auto& state = *of.transfer;
  part.is_filling = false;
  part.is_busy = true;
  part.done = &engine::on_part;
  const void* const from = part.chunk != nullptr ? part.chunk : copy::host_pointer(of.at.address + part.offset);
  const std::uint64_t tag = state.first_tag + part.offset / state.chunk;
  fabric_->send_bulk(of.peer, tag, from, state.code == 0 ? part.bytes : 0, state.is_raw_gpu, part);
}

// ---- Receiving

void engine::start_network_receive(operation& to, const peer_state& from, const bulk_offer& offer) {
  auto& state = *to.transfer;
  if (!state.data.is_empty() && !to.at.is_device && to.moved == to.bytes) return receive_in_place(to);
  state.make_parts();
  const bool has_gpu_memory = offer.is_device || to.at.is_device;
  const bool is_raw = has_gpu_memory && from.can_take_gpu_pointers;
  state.is_raw_gpu = is_raw && to.at.is_device;
  state.is_direct = !to.at.is_device || is_raw;
  if (is_raw) state.chunk = state.wanted;
  else state.chunk = has_gpu_memory || offer.is_staged ? limits_.network_chunk_bytes : fabric_->part_bytes_of(state.wanted);
  state.first_tag = fresh_part_tag();
  moving_.push_back(&to);
  post_parts(to);
  state.granted = state.started;
  order(to, {bulk_way::network, to.at.is_device, is_raw, state.wanted, state.chunk, state.first_tag, state.granted});
}

void engine::post_parts(operation& of) {
  auto& state = *of.transfer;
  for (auto& part : *state.parts) {
    if (part.of != nullptr) continue;
    if (state.started >= state.wanted || state.is_withdrawn || peer(of.peer).is_dead) return;
    if (!state.is_direct && !state.is_revoked && (part.chunk = pinned_->take(state.device_ordinal)) == nullptr) return;
    post_part(of, part);
  }
}

void engine::post_part(operation& of, transfer_state::part& part) {
  auto& state = *of.transfer;
  part.of = &of;
  part.offset = state.started;
  part.bytes = std::min(state.chunk, state.wanted - state.started);
  part.is_busy = true;
  part.is_arrived = part.is_filling = false;
  part.done = &engine::on_part;
  state.started += part.bytes;
  ++state.parts_busy;
  if (state.is_revoked) return post_scratch(of, part);
  part.is_scratch = false;
  void* const to = part.chunk != nullptr ? part.chunk : copy::host_pointer(of.at.address + part.offset);
  fabric_->receive_bulk(state.first_tag + part.offset / state.chunk, to, part.bytes, state.is_raw_gpu, part);
}

// The sender sends a part that nobody wants any more: UCX takes it, and drops what does not fit.
void engine::post_scratch(operation& of, transfer_state::part& part) {
  auto& state = *of.transfer;
  part.is_busy = part.is_scratch = true;
  part.is_arrived = false;
  fabric_->receive_bulk(state.first_tag + part.offset / state.chunk, state.scratch.data(), state.scratch.size(), false,
                        part);
}

void engine::advance_network_receive(operation& of) {
  if (give_up(of)) return;
  auto& state = *of.transfer;
  for (auto& part : *state.parts) {
    const bool is_cancelled = state.is_revoked && part.of != nullptr && part.is_arrived && !part.is_scratch &&
                              part.code == ECANCELED && !peer(of.peer).is_dead && !state.is_withdrawn;
    if (is_cancelled) post_scratch(of, part);
    if (part.of != nullptr && part.is_arrived && !part.is_filling) {
      part.is_filling = true;
      part.copy.is_pending = false;
      status begun;
      if (part.chunk != nullptr && state.code == 0)
        begun = begin_copy(part.copy, of.at, part.offset, part.chunk, part.bytes, false, state.how);
      if (!begun) state.code = begun.code(), state.message = begun.error().message;
    }
    if (part.of != nullptr && part.is_filling) {
      const auto done = copy_ended(part.copy);
      if (!done) continue;
      if (!*done && state.code == 0) state.code = done->code(), state.message = done->error().message;
      part.is_filling = false;
      end_part(of, part);
    }
  }
  post_parts(of);
  if (state.started > state.granted) {
    state.granted = state.started;
    control(of.peer, {.kind = frame_kind::parts, .tag = state.granted, .peer_op = of.peer_op});
  }
  const bool is_over = state.parts_busy == 0 && (state.ended >= state.wanted || state.is_withdrawn || peer(of.peer).is_dead);
  if (!is_over) return;
  moving_.remove(&of);
  const int code = state.code;
  finish_receive(of, code, std::move(state.message));
}

}  // namespace pl::link
