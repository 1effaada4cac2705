// SPDX-License-Identifier: Apache-2.0
// Rendezvous through shared memory on one node: copies into chunks at the sender and out of them at the receiver
// overlap, as many as the ring has chunks. Each chunk is labelled with its operation, so transfers of one pair follow
// each other without a gap.
#include <algorithm>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"
#include "copy/calibration.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::messaging {

namespace {

constexpr std::size_t kShareBytes = 32 << 10;  // of a chunk, for one thread: some 2 us
constexpr unsigned kMaxFillers = 4;            // threads, the caller included

// The two sides overlap only on different chunks, and a GPU copy costs some microseconds at any size: so short messages
// to a GPU use chunks that its CPU stores. When other messages wait, their chunks overlap with this one's, and few large
// chunks cost least.
std::uint64_t chunk_of(const operation& op, const shm_ring& ring, bool is_alone) {
  constexpr std::uint64_t kByCpu = 16 << 10, kByGpu = 64 << 10;
  const auto& state = *op.transfer;
  const bool by_gpu = op.range.is_device || (state.is_for_device && state.wanted > kByGpu);
  if (!by_gpu || state.access == touch::cpu_only) return std::min(ring.chunk_bytes(), std::max(kByCpu, state.wanted / 4));
  return is_alone ? std::min(ring.chunk_bytes(), std::max(kByGpu, state.wanted / 4)) : ring.chunk_bytes();
}

}  // namespace

bool messenger_core::open_ring_out(peer_state& destination) {
  if (destination.outbound.ring != nullptr || destination.outbound.refusal != 0) return destination.outbound.ring != nullptr;
  auto made = shm_ring::make(context_.limits.ring_chunk_bytes);
  destination.outbound.refusal = made.code();
  if (made) destination.outbound.ring = *std::move(made);
  return destination.outbound.ring != nullptr;
}

bool messenger_core::open_ring_in(peer_state& source, const rts_body& rts) {
  if (source.inbound.ring == nullptr && source.inbound.refusal == 0) {
    auto opened = shm_ring::open(rts.ring);
    source.inbound.refusal = opened.code();
    if (opened) source.inbound.ring = *std::move(opened);
  }
  if (source.inbound.ring == nullptr) return false;
  if (std::find(ring_peers_.begin(), ring_peers_.end(), source.rank) == ring_peers_.end())
    ring_peers_.push_back(source.rank);
  return true;
}

// The receiver's side, also the fallback for other transports.
void messenger_core::start_ring(operation& receive, peer_state& source, const rts_body& rts) {
  receive.transfer->transport = transport_kind::none;
  if (rts.has_ring && open_ring_in(source, rts)) {
    receive.transfer->transport = transport_kind::shm;
    ++source.inbound.expected;
    return send_rtr(
        receive, {.transport = transport_kind::shm, .receiver_is_device = receive.range.is_device, .bytes = receive.moved});
  }
  // The ring's owner may have ended after it sent the RTS, before this process has detected it.
  if (source.inbound.is_gone()) return finish_receive(receive, ECONNRESET, format("rank %d is gone", source.rank));
  finish_receive(receive, ENOMEM, "there is no shared memory for a message of the node");
}

void messenger_core::advance_rings() {
  for (std::size_t i = 0; i < ring_peers_.size();) {
    auto& remote = context_.peer(ring_peers_[i]);
    const bool is_filling = fill_ring(remote);
    const bool is_emptying = empty_ring(remote);
    if (is_filling || is_emptying) ++i;
    else ring_peers_.erase(ring_peers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// Fills the first transfer's next chunks while there is room, then publishes the chunks whose copy has ended.
bool messenger_core::fill_ring(peer_state& destination) {
  auto& end_out = destination.outbound;
  if (end_out.ring == nullptr) return false;
  auto& ring = *end_out.ring;
  while (!destination.fill_queue.is_empty() &&
         end_out.begun - ring.emptied().load(std::memory_order_acquire) < shm_ring::kChunks) {
    auto& op = *destination.fill_queue.first();
    auto& state = *op.transfer;
    const auto slot = end_out.begun % shm_ring::kChunks;
    const bool is_alone = destination.fill_queue.next(&op) == nullptr;
    const auto bytes = std::min(chunk_of(op, ring, is_alone), state.wanted - state.started);
    const auto begun = begin_filling(op, ring, end_out.begun, bytes, end_out.copies[slot]);
    end_out.labels[slot] = {op.peer_op, state.started, bytes, begun.code()};
    end_out.senders[slot] = op.id();
    state.started += bytes;
    ++end_out.begun;
    if (state.started == state.wanted) destination.fill_queue.remove(&op);
  }
  while (end_out.ended < end_out.begun) {
    const auto slot = end_out.ended % shm_ring::kChunks;
    const auto done = copy_ended(end_out.copies[slot]);
    if (!done) break;
    auto& label = end_out.labels[slot];
    if (!*done) label.code = done->code();
    ring.label_of(end_out.ended) = label;
    ring.published().store(++end_out.ended, std::memory_order_release);
    chunk_filled(end_out.senders[slot], label, *done);
  }
  return !destination.fill_queue.is_empty() || end_out.ended < end_out.begun;
}

status messenger_core::begin_filling(operation& op, shm_ring& ring, std::uint64_t number, std::uint64_t bytes,
                                     chunk_copy& copy) {
  auto& state = *op.transfer;
  copy.is_pending = false;
  if (state.code != 0) return failure{state.code, state.message};  // the remaining chunks carry no bytes
  if (!op.range.is_device && state.is_for_device && bytes > kShareBytes) {
    fill_by_threads(ring.chunk(number), copy::host_pointer(op.range.address + state.started), bytes);
    return {};
  }
  if (context_.buffers.has_gpu() && op.range.is_device && state.access == touch::any)
    ring.pin(*context_.buffers.planner(), state.device_ordinal);
  return begin_copy(copy, op.range, state.started, ring.chunk(number), bytes, true, state.access);
}

// Several threads, because a copy engine empties a chunk faster than one thread fills it. Non-temporal stores, so that
// the chunk is not read first and the copy engine need not fetch it from a CPU cache (two H200, 4 MiB in windows: 9.4 GB/s
// by one thread through the caches, 14 by two and 27 by four past them).
void messenger_core::fill_by_threads(void* chunk, const void* source, std::size_t bytes) {
  if (fillers_ == nullptr) {
    const unsigned most = context_.buffers.has_gpu() ? context_.buffers.planner()->threads() : 2;
    fillers_ = std::make_unique<copy::worker_pool>(copy::worker_pool::options{
        .helpers = std::min(most, kMaxFillers) - 1,
        .cpus = context_.buffers.has_gpu() ? copy::cpus_near_device(*context_.cuda, 0) : std::vector<int>()});
  }
  fillers_->run(kMaxFillers, (bytes + kShareBytes - 1) / kShareBytes, [&](std::size_t share) {
    const std::size_t begin = share * kShareBytes;
    arch::copy_to(arch::mapping_type::wc, static_cast<char*>(chunk) + begin, static_cast<const char*>(source) + begin,
                  std::min(kShareBytes, bytes - begin));
  });
}

void messenger_core::chunk_filled(std::uint64_t sender, const shm_ring::label& label, const status& done) {
  operation* const op = context_.operations.find(sender);
  if (op == nullptr || op->has_ended()) return;
  auto& state = *op->transfer;
  state.ended += label.bytes;
  if (label.code != 0 && state.code == 0) {
    state.code = label.code;
    state.message = done ? "the memory of the message could not be read" : done.error().message;
  }
  if (state.ended == state.wanted) finish_send(*op);
}

bool messenger_core::empty_ring(peer_state& source) {
  auto& end_in = source.inbound;
  if (end_in.ring == nullptr) return false;
  auto& ring = *end_in.ring;
  const auto published = ring.published().load(std::memory_order_acquire);
  while (end_in.begun < published && end_in.begun - end_in.ended < shm_ring::kChunks) {
    const auto slot = end_in.begun % shm_ring::kChunks;
    auto& label = end_in.labels[slot] = ring.label_of(end_in.begun);
    label.code = begin_emptying(source, label, ring, end_in.begun, end_in.copies[slot]);
    ++end_in.begun;
  }
  while (end_in.ended < end_in.begun) {
    const auto slot = end_in.ended % shm_ring::kChunks;
    const auto done = copy_ended(end_in.copies[slot]);
    if (!done) break;
    const auto label = end_in.labels[slot];
    ring.emptied().store(++end_in.ended, std::memory_order_release);
    chunk_emptied(label, *done);
  }
  // Keep the ring active while receives from this peer expect data.
  return end_in.ended < end_in.begun || end_in.expected != 0;
}

// Returns the chunk's result so far. A chunk of an operation that has ended meanwhile is only counted.
int messenger_core::begin_emptying(peer_state& source, const shm_ring::label& label, shm_ring& ring, std::uint64_t number,
                                   chunk_copy& copy) {
  copy.is_pending = false;
  operation* const receive = context_.operations.find(label.op);
  if (label.code != 0 || receive == nullptr || receive->peer != source.rank || receive->state != operation_state::moving)
    return label.code;
  auto& state = *receive->transfer;
  if (label.bytes > ring.chunk_bytes() || label.offset > state.wanted || label.bytes > state.wanted - label.offset)
    return EPROTO;
  if (state.code != 0) return state.code;
  if (receive->range.is_device && state.access == touch::any) ring.pin(*context_.buffers.planner(), state.device_ordinal);
  return begin_copy(copy, receive->range, label.offset, ring.chunk(number), label.bytes, false, state.access).code();
}

void messenger_core::chunk_emptied(const shm_ring::label& label, const status& done) {
  operation* const receive = context_.operations.find(label.op);
  if (receive == nullptr || receive->state != operation_state::moving) return;
  auto& state = *receive->transfer;
  state.ended += label.bytes;
  if (state.code == 0 && (label.code != 0 || !done)) {
    state.code = label.code != 0 ? label.code : done.code();
    state.message = !done                     ? done.error().message
                    : label.code == ECANCELED ? kTakenBack
                                              : "a chunk of the message could not be copied";
  }
  if (state.ended < state.wanted) return;
  --context_.peer(receive->peer).inbound.expected;
  const int code = state.code;
  finish_receive(*receive, code, std::move(state.message));
}

void messenger_core::drop_rings(peer_state& remote) {
  std::erase(ring_peers_, remote.rank);
  for (ring_end* each : {&remote.outbound, &remote.inbound}) {
    for (auto& copy : each->copies) copy = {};  // waits for what still copies
    each->ring.reset();
    each->refusal = ECONNRESET;
  }
}

}  // namespace pl::messaging
