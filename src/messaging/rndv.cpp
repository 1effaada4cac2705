// SPDX-License-Identifier: Apache-2.0
// Announced messages: the sender offers what it has, the receiver, which knows both memories, picks the way.
#include "messaging/rndv.hpp"

#include <algorithm>
#include <cstring>

#include "base/text.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::link {

// ---- The sender

int engine::read_offer(packet& from, std::size_t offset, void* to, std::size_t bytes) {
  const auto& what = *static_cast<const operation*>(from.owner);
  std::memcpy(to, reinterpret_cast<const std::byte*>(&what.transfer->offer) + offset, bytes);
  return 0;
}

// What the driver says of it; null for host memory.
std::optional<cu::pointer_info> engine::describe_gpu(const memory& what, transfer_state& into) {
  into.how = touch_of(what);
  if (!what.is_device) return std::nullopt;
  const auto info =
      what.device.device_ordinal >= 0 ? std::optional(what.device) : cu::find_device_memory(*cuda_, what.address);
  if (info) into.device_ordinal = info->device_ordinal;
  return info;
}

void engine::announce(operation& what, frame_kind kind) {
  what.transfer = std::make_unique<transfer_state>();
  auto& offer = what.transfer->offer;
  auto& to = peer(what.peer);
  if (is_for_rendezvous(what)) return announce_in_place(what, kind);
  offer.is_device = what.at.is_device;
  const auto info = describe_gpu(what.at, *what.transfer);
  if (to.is_same_node && open_ring_out(to)) {
    offer.has_ring = true;
    offer.ring = to.out.ring->own_name();
  }
  if (to.is_same_node && options_.use_pull && !what.at.is_device) {
    offer.has_pull = true;
    offer.address = what.at.address;
  }
  if (to.lane_out.is_open()) offer.withdrawals = to.lane_out.withdrawals();
  if (to.is_same_node && options_.use_ipc && info && what.bytes >= limits_.ipc_from) {
    if (const auto handle = ipc_.export_handle(*info)) {
      offer.has_ipc = true;
      offer.ipc = *handle;
      offer.buffer_id = info->buffer_id;
      offer.ipc_offset = what.at.address - info->allocation.begin;
    }
  }
  what.out.head.tag = what.tag;
  what.out.head.bytes = what.bytes;
  depart_operation(what, kind, sizeof offer, &read_offer);
}

void engine::on_start(peer_state& from, const frame& head, const start_order& order) {
  operation* const what = operations_.find(head.peer_op);
  const bool is_valid = what != nullptr && what->state == operation_state::waiting && what->transfer != nullptr &&
                        what->peer == from.rank && order.bytes <= what->bytes;
  if (!is_valid) return control(from.rank, {.kind = frame_kind::finish, .code = ECANCELED, .peer_op = head.op});
  auto& state = *what->transfer;
  what->state = operation_state::moving;
  what->peer_op = head.op;
  state.way = order.way;
  state.wanted = order.bytes;
  if (order.way == bulk_way::shared_ring) {
    ++counts_.shared_ring;
    g_live_shared_ring.add(order.bytes);
    state.is_for_device = order.receiver_is_device;
    from.to_fill.push_back(what);
    if (std::find(ring_peers_.begin(), ring_peers_.end(), from.rank) == ring_peers_.end()) ring_peers_.push_back(from.rank);
  } else {
    start_network_send(*what, order);
  }
}

constexpr const char* kWindowEnded = "the target has ended its window while this was under way";

// At either side: the answer to whatever waited for one.
void engine::on_finish(const frame& head) {
  operation* const what = operations_.find(head.peer_op);
  if (what == nullptr || what->has_ended() || what->kind == operation_kind::arrival) return;
  if (what->state == operation_state::moving && what->transfer != nullptr) {
    auto& state = *what->transfer;
    if (what->kind == operation_kind::put) {
      state.is_confirmed = true;
      state.confirmed_code = head.code;
      if (head.code != 0 && state.way == bulk_way::network && state.code == 0) {
        state.code = head.code;
        state.message = kWindowEnded;
      }
      return;
    }
    if (!state.is_receive && head.code != 0 && state.way == bulk_way::network && state.code == 0)
      state.code = head.code;  // the receiver wants no more: what it waits for comes empty
    if (head.code == 0 || !state.is_receive) return;
    // An order that its sender refuses.
    state.code = head.code;
    if (state.way == bulk_way::network) {
      state.is_withdrawn = true;
      return abandon_parts(*what);
    }
    --peer(what->peer).in.expected;
  } else if (what->is_departing && what->out.in_place != nullptr) {
    what->transfer->is_confirmed = true;  // UCX has the last word: until then its peer may read the memory
    what->transfer->confirmed_code = head.code;
    return;
  }
  const bool is_of_window = what->kind == operation_kind::put || what->kind == operation_kind::get;
  end(*what, head.code,
      head.code == 0           ? ""
      : head.code != ECANCELED ? "the receiver's side failed"
      : is_of_window           ? kWindowEnded
                               : "cancelled");
}

// All has left, or could not be read.
void engine::finish_send(operation& what) {
  const auto& state = *what.transfer;
  if (what.kind != operation_kind::put || state.code != 0) return end(what, state.code, state.message);
  if (state.is_confirmed)
    return end(what, state.confirmed_code, state.confirmed_code == 0 ? "" : "the target's side failed");
  what.state = operation_state::waiting;  // for the target's word
}

// ---- The receiver

bulk_way engine::choose_way(const operation& to, const peer_state& from, const bulk_offer& offer) {
  if (!from.is_same_node) return bulk_way::network;
  const std::size_t ipc_from = std::max(to.at.is_device ? limits_.ipc_from : limits_.ipc_to_host_from,
                                        is_gpu_shared_ ? limits_.shared_gpu_cpu_limit + 1 : 0);
  const bool can_ipc = offer.has_ipc && options_.use_ipc && memory_.has_gpu();
  if (can_ipc && (to.moved >= ipc_from || !offer.has_ring)) return bulk_way::ipc;
  if (offer.has_pull && !to.at.is_device && options_.use_pull && !from.refuses_pull) return bulk_way::pull;
  return offer.has_ring ? bulk_way::shared_ring : bulk_way::none;
}

void engine::receive_announced(operation& to, int from, const bulk_offer& offer, std::uint64_t bytes,
                               std::uint64_t sender_op, remote_data data) {
  auto& source = peer(from);
  to.peer = from;
  to.peer_op = sender_op;
  to.bytes = bytes;
  to.moved = std::min<std::uint64_t>(bytes, to.at.bytes);
  to.state = operation_state::moving;
  to.transfer = std::make_unique<transfer_state>();
  to.transfer->wanted = to.moved;
  to.transfer->is_receive = true;
  to.transfer->data = std::move(data);
  to.transfer->withdrawals = offer.withdrawals;
  describe_gpu(to.at, *to.transfer);
  if (to.moved == 0) return finish_receive(to, 0);
  const auto way = to.transfer->way = choose_way(to, source, offer);
  if (way == bulk_way::ipc && start_ipc(to, offer)) return;
  if (way == bulk_way::pull) return start_pull(to, offer);
  if (way == bulk_way::network) return start_network_receive(to, source, offer);
  start_ring(to, source, offer);
}

void engine::order(operation& to, const start_order& what) {
  control(to.peer, {.kind = frame_kind::start, .op = to.id(), .peer_op = to.peer_op}, &what, sizeof what);
}

// The end of the receiving side; its sender hears of it where it waits for that.
void engine::finish_receive(operation& of, int code, std::string message) {
  const bool is_deposit = of.kind == operation_kind::deposit;
  const auto way = of.transfer->way;
  // A send through a ring or the network has ended by itself when its last byte had left.
  if (is_deposit || (way != bulk_way::shared_ring && way != bulk_way::network))
    control(of.peer, {.kind = frame_kind::finish, .code = code, .peer_op = of.peer_op});
  if (code == 0 && of.bytes > of.at.bytes)
    return end(
        of, EMSGSIZE,
        format("a message of %llu bytes for a buffer of %zu", static_cast<unsigned long long>(of.bytes), of.at.bytes));
  end(of, code, std::move(message));
}

// ---- Progress

void engine::advance() {
  if (!ready_.empty()) submit_copies();
  pull_budget_ = kPullAtOnce;
  if (pulls_ > 1) pull_together();
  for (operation* at = moving_.first(); at != nullptr;) {
    operation* const next = moving_.next(at);
    const auto way = at->transfer->way;
    if (way == bulk_way::ipc) advance_ipc(*at);
    else if (way == bulk_way::pull) advance_pull(*at);
    else if (at->transfer->is_receive) advance_network_receive(*at);
    else advance_network_send(*at);
    at = next;
  }
}

// ---- Copies between a message's memory and a chunk

status engine::begin_copy(chunk_copy& copy, const memory& of, std::uint64_t offset, void* chunk, std::size_t bytes,
                          bool to_chunk, touch how) {
  copy.is_pending = false;
  // Small ones, and those that must not touch the GPU's engines, at once by the CPU.
  constexpr std::size_t kAtOnce = 16 << 10;
  const bool by_cpu = how == touch::cpu_only && of.bytes <= limits_.shared_gpu_cpu_limit;
  if (!of.is_device || bytes <= kAtOnce || by_cpu) {
    const auto touched = by_cpu ? touch::cpu_only : touch::any;
    return to_chunk ? memory_.read(of, offset, chunk, bytes, touched) : memory_.write(of, offset, chunk, bytes, touched);
  }
  const copy::transfer what =
      to_chunk ? copy::transfer{copy::direction::to_host, copy::address_of(chunk), of.address + offset, bytes}
               : copy::transfer{copy::direction::to_device, of.address + offset, copy::address_of(chunk), bytes};
  auto begun = memory_.planner()->begin(std::span(&what, 1), {});
  if (!begun) return std::move(begun).error();
  copy.pending = *std::move(begun);
  copy.is_pending = true;
  return {};
}

// Nothing while it is under way.
std::optional<status> engine::copy_ended(chunk_copy& copy) {
  if (!copy.is_pending) return status{};
  const auto done = copy.pending.test();
  if (done && !*done) return std::nullopt;
  copy.is_pending = false;
  copy.pending = {};
  if (!done) return status{done.error()};
  return status{};
}

}  // namespace pl::link
