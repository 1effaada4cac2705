// SPDX-License-Identifier: Apache-2.0
// Announced messages: the sender offers what it has, the receiver, which knows both memories, picks the way.
#include "bulk.hpp"

#include <algorithm>
#include <cstring>

#include "engine.hpp"
#include "text.hpp"

namespace pl::link {
namespace {

int read_offer(packet& from, std::size_t offset, void* to, std::size_t bytes) {
  const auto& what = *static_cast<const operation*>(from.owner);
  std::memcpy(to, reinterpret_cast<const std::byte*>(&what.transfer->offer) + offset, bytes);
  return 0;
}

}  // namespace

// ---- The sender

void engine::describe_gpu(const memory& what, transfer_state& into) {
  into.how = touch_of(what);
  if (!what.is_device) return;
  if (const auto info = cu::inspect_pointer(*cuda_, what.address)) into.device_ordinal = info->device_ordinal;
}

void engine::announce(operation& what, frame_kind kind) {
  what.transfer = std::make_unique<transfer_state>();
  auto& offer = what.transfer->offer;
  auto& to = peer(what.peer);
  offer.is_device = what.at.is_device;
  describe_gpu(what.at, *what.transfer);
  if (to.is_same_node && open_ring_out(to)) {
    offer.has_ring = true;
    offer.ring = to.out.ring->own_name();
  }
  if (to.is_same_node && options_.use_ipc && what.at.is_device && what.bytes >= limits_.ipc_from) {
    const auto info = cu::inspect_pointer(*cuda_, what.at.address);
    const auto handle = info ? ipc_.export_handle(*info) : result<cu::ipc_mem_handle_t>(failure{EINVAL, ""});
    if (handle) {
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
    from.to_fill.push_back(what);
    if (std::find(ring_peers_.begin(), ring_peers_.end(), from.rank) == ring_peers_.end()) ring_peers_.push_back(from.rank);
  } else {
    start_network_send(*what, order);
  }
}

// At either side: the answer to whatever waited for one.
void engine::on_finish(const frame& head) {
  operation* const what = operations_.find(head.peer_op);
  if (what == nullptr || what->has_ended() || what->kind == operation_kind::arrival) return;
  if (what->state == operation_state::moving && what->transfer != nullptr) {
    auto& state = *what->transfer;
    if (what->kind == operation_kind::put) {
      state.is_confirmed = true;
      state.confirmed_code = head.code;
      return;
    }
    if (head.code == 0 || !state.is_receive) return;
    // An order that its sender refuses.
    state.code = head.code;
    if (state.way == bulk_way::network) {
      state.is_withdrawn = true;
      return abandon_parts(*what);
    }
    --peer(what->peer).in.expected;
  }
  end(*what, head.code, head.code == ECANCELED ? "cancelled" : head.code != 0 ? "the receiver's side failed" : "");
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
  const bool is_far_ipc = !is_gpu_shared_ || to.moved > limits_.shared_gpu_cpu_limit;
  if (offer.has_ipc && options_.use_ipc && memory_.has_gpu() && to.moved >= limits_.ipc_from && is_far_ipc)
    return bulk_way::ipc;
  return offer.has_ring ? bulk_way::shared_ring : bulk_way::none;
}

void engine::receive_announced(operation& to, int from, const bulk_offer& offer, std::uint64_t bytes,
                               std::uint64_t sender_op) {
  auto& source = peer(from);
  to.peer = from;
  to.peer_op = sender_op;
  to.bytes = bytes;
  to.moved = std::min<std::uint64_t>(bytes, to.at.bytes);
  to.state = operation_state::moving;
  to.transfer = std::make_unique<transfer_state>();
  to.transfer->wanted = to.moved;
  to.transfer->is_receive = true;
  describe_gpu(to.at, *to.transfer);
  if (to.moved == 0) return finish_receive(to, 0);
  auto way = choose_way(to, source, offer);
  if (way == bulk_way::ipc && !start_ipc(to, offer)) way = offer.has_ring ? bulk_way::shared_ring : bulk_way::none;
  if (way == bulk_way::shared_ring && !open_ring_in(source, offer)) way = bulk_way::none;
  // Its owner may have ended after it had named the ring, and before anybody here has noticed.
  if (way == bulk_way::none && source.in.is_gone()) return finish_receive(to, ECONNRESET, format("rank %d is gone", from));
  if (way == bulk_way::none) return finish_receive(to, ENOMEM, "there is no shared memory for a message of the node");
  to.transfer->way = way;
  if (way == bulk_way::shared_ring)
    ++source.in.expected, order(to, {.way = way, .receiver_is_device = to.at.is_device, .bytes = to.moved});
  else if (way == bulk_way::network) start_network_receive(to, source, offer);
}

void engine::order(operation& to, const start_order& what) {
  control(to.peer, {.kind = frame_kind::start, .op = to.id(), .peer_op = to.peer_op}, &what, sizeof what);
}

// The end of the receiving side; its sender hears of it where it waits for that.
void engine::finish_receive(operation& of, int code, std::string message) {
  const bool is_deposit = of.kind == operation_kind::deposit;
  const auto way = of.transfer->way;
  // A send through a ring or the network has ended by itself when its last byte had left.
  if (is_deposit || way == bulk_way::ipc || way == bulk_way::none)
    control(of.peer, {.kind = frame_kind::finish, .code = code, .peer_op = of.peer_op});
  if (code == 0 && of.bytes > of.at.bytes)
    return end(
        of, EMSGSIZE,
        format("a message of %llu bytes for a buffer of %zu", static_cast<unsigned long long>(of.bytes), of.at.bytes));
  end(of, code, std::move(message));
}

// ---- CUDA IPC: the receiver copies straight from the sender's memory.

bool engine::start_ipc(operation& to, const bulk_offer& offer) {
  auto& state = *to.transfer;
  const int device = to.at.is_device ? state.device_ordinal : 0;
  const auto base = ipc_.open(to.peer, offer.buffer_id, offer.ipc, device);
  if (!base) return false;
  const auto way = to.at.is_device ? copy::direction::on_device : copy::direction::to_host;
  const copy::transfer what{way, to.at.address, *base + offer.ipc_offset, to.moved};
  auto begun = memory_.planner()->begin(std::span(&what, 1), {});
  if (!begun) return false;
  ++counts_.ipc;
  ipc_.hold(*base);
  state.ipc_base = *base;
  state.ipc_copy = *std::move(begun);
  moving_.push_back(&to);
  return true;
}

void engine::advance_ipc(operation& of) {
  auto& state = *of.transfer;
  const auto done = state.ipc_copy.test();
  if (done && !*done) return;
  ipc_.let_go(state.ipc_base);
  moving_.remove(&of);
  if (done) finish_receive(of, 0);
  else finish_receive(of, done.code(), done.error().message);
}

void engine::advance() {
  for (operation* at = moving_.first(); at != nullptr;) {
    operation* const next = moving_.next(at);
    if (at->transfer->way == bulk_way::network) {
      if (at->transfer->is_receive) advance_network_receive(*at);
      else advance_network_send(*at);
    } else {
      advance_ipc(*at);
    }
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
