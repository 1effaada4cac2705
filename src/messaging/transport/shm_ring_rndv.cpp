// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/shm_ring_rndv.hpp"

#include <algorithm>
#include <cstring>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"
#include "copy/calibration.hpp"
#include "copy/queue_ring.hpp"
#include "messaging/live_messages.hpp"
#include "messaging/rndv.hpp"

namespace pl::messaging {

namespace {

constexpr std::size_t kShareBytes = 32 << 10;  // of a chunk, for one thread: some 2 us

// The two sides overlap only on different chunks, and a GPU copy costs some microseconds at any size: so short messages
// to a GPU use chunks that its CPU stores. When other messages wait, their chunks overlap with this one's, and few large
// chunks cost least.
std::uint64_t chunk_of(const operation& op, const shm_ring& ring, bool is_alone) {
  constexpr std::uint64_t kByCpu = 16 << 10, kMaxByCpu = 256 << 10, kByGpu = 64 << 10;
  const auto& state = *op.transfer;
  const bool is_long = is_alone ? state.wanted > kByGpu : state.wanted >= kByGpu;
  const bool is_for_gpu = slice_of<shm_ring_transfer>(op).is_other_side_device && is_long;
  const bool is_by_gpu = state.access != touch::cpu_only && (op.range.is_device || is_for_gpu);
  const auto quarter = state.wanted / 4;
  if (!is_by_gpu) return std::min(ring.chunk_bytes(), std::clamp(quarter, kByCpu, kMaxByCpu));
  return is_alone ? std::min(ring.chunk_bytes(), std::max(kByGpu, quarter)) : ring.chunk_bytes();
}

}  // namespace

shm_ring_rndv::shm_ring_rndv(rendezvous& owner)
    : transport(owner, false), rings_(static_cast<std::size_t>(owner.context().size)) {}

// ---- Start

void shm_ring_rndv::offer(operation& send, const std::optional<cu::pointer_info>&, rts_body& rts) {
  auto& end_out = rings(send.peer).outbound;
  rts.has_ring = open_outbound(end_out);
  if (rts.has_ring) rts.ring = end_out.ring->own_name();
}

bool shm_ring_rndv::open_outbound(ring_end& end_out) {
  if (!end_out.may_try()) return end_out.ring != nullptr;
  auto made = shm_ring::make(context_.limits.ring_chunk_bytes);
  end_out.refusal = made.code();
  if (made) end_out.ring = *std::move(made);
  return end_out.ring != nullptr;
}

bool shm_ring_rndv::open_inbound(ring_end& end_in, const shm_ring::name& file) {
  if (end_in.may_try()) {
    auto opened = shm_ring::open(file);
    end_in.refusal = opened.code();
    if (opened) end_in.ring = *std::move(opened);
  }
  return end_in.ring != nullptr;
}

void shm_ring_rndv::watch_peer(int rank) {
  if (std::find(busy_peers_.begin(), busy_peers_.end(), rank) != busy_peers_.end()) return;
  busy_peers_.push_back(rank);
  set_in_flight(busy_peers_.size());
}

bool shm_ring_rndv::start_receive(operation& receive, const rts_body& rts) {
  auto& end_in = rings(receive.peer).inbound;
  if (rts.has_ring && open_inbound(end_in, rts.ring)) {
    receive.transfer->slice.emplace<shm_ring_transfer>().is_other_side_device = rts.is_device;
    watch_peer(receive.peer);
    ++end_in.expected;
    rendezvous_.send_rtr(
        receive, {.transport = transport_kind::shm, .receiver_is_device = receive.range.is_device, .bytes = receive.moved});
    return true;
  }
  if (!end_in.is_gone()) return false;
  // The ring's owner may have ended after it sent the RTS, before this process has detected it.
  receive.transfer->active = nullptr;
  rendezvous_.finish_receive(receive, ECONNRESET, format("rank %d is gone", receive.peer));
  return true;
}

bool shm_ring_rndv::start_send(operation& send, const rtr_body& request) {
  ++context_.counts.shared_ring;
  g_live_shared_ring.add(request.bytes);
  send.transfer->slice.emplace<shm_ring_transfer>().is_other_side_device = request.receiver_is_device;
  rings(send.peer).fill_queue.push_back(&send);
  watch_peer(send.peer);
  return true;
}

void shm_ring_rndv::advance() {
  for (std::size_t i = 0; i < busy_peers_.size();) {
    const int rank = busy_peers_[i];
    const bool is_filling = fill_ring(rank);
    const bool is_emptying = empty_ring(rank);
    if (is_filling || is_emptying) ++i;
    else busy_peers_.erase(busy_peers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  set_in_flight(busy_peers_.size());
}

// True for copies of a GPU. In all other cases the other side wakes this process.
bool shm_ring_rndv::must_poll() const {
  const auto is_copying = [](const ring_end& each) {
    return std::any_of(each.copies.begin(), each.copies.end(), [](const chunk_copy& copy) { return copy.is_pending; });
  };
  return std::any_of(busy_peers_.begin(), busy_peers_.end(), [&](int rank) {
    const auto& pair = rings_[static_cast<std::size_t>(rank)];
    return is_copying(pair.outbound) || is_copying(pair.inbound);
  });
}

// ---- The sender

// Fills the first transfer's next chunks while there is room, then publishes the chunks whose copy has ended.
bool shm_ring_rndv::fill_ring(int rank) {
  auto& destination = rings(rank);
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
    context_.wake.note();
    if (state.started == state.wanted) destination.fill_queue.remove(&op);
  }
  const auto ended = end_out.ended;
  const bool is_filling = publish_filled(destination);
  if (end_out.ended != ended) note_step(rank);
  return is_filling;
}

// Call it after chunks were published or emptied, because the peer may sleep until then.
void shm_ring_rndv::note_step(int rank) {
  context_.wake.note();
  channel_.wake_peer(context_.peer(rank));
}

bool shm_ring_rndv::publish_filled(ring_pair& destination) {
  auto& end_out = destination.outbound;
  auto& ring = *end_out.ring;
  while (end_out.ended < end_out.begun) {
    const auto slot = end_out.ended % shm_ring::kChunks;
    const auto done = end_out.copies[slot].test();
    if (!done) break;
    auto& label = end_out.labels[slot];
    if (!*done) label.code = done->code();
    ring.label_of(end_out.ended) = label;
    ring.published().store(++end_out.ended, std::memory_order_release);
    chunk_filled(end_out.senders[slot], label, *done);
  }
  return !destination.fill_queue.is_empty() || end_out.ended < end_out.begun;
}

status shm_ring_rndv::begin_filling(operation& op, shm_ring& ring, std::uint64_t number, std::uint64_t bytes,
                                    chunk_copy& copy) {
  auto& state = *op.transfer;
  copy.is_pending = false;
  if (state.code != 0) return failure{state.code, state.message};  // the remaining chunks carry no bytes
  if (is_shared_by_threads(op, bytes, kShareBytes)) {
    fill_by_threads(ring.chunk(number), copy::host_pointer(op.range.address + state.started), bytes);
    return {};
  }
  if (context_.buffers.has_gpu() && op.range.is_device && state.access == touch::any)
    ring.pin(*context_.buffers.planner(), state.device_ordinal);
  return copy.begin(context_, op.range, state.started, ring.chunk(number), bytes, chunk_direction::to_chunk, state.access);
}

// Several threads, because a copy engine fills or empties a chunk faster than one thread does. Up to `alone` bytes it costs
// more to call the threads.
bool shm_ring_rndv::is_shared_by_threads(const operation& op, std::uint64_t bytes, std::size_t alone) {
  return !op.range.is_device && slice_of<shm_ring_transfer>(op).is_other_side_device && bytes > alone;
}

template <class Copy>
void shm_ring_rndv::copy_by_threads(unsigned most, std::size_t bytes, Copy&& copy_share) {
  if (threads_ == nullptr)
    threads_ = std::make_unique<copy::worker_pool>(copy::worker_pool::options{
        .helpers = context_.copy_threads() - 1,
        .cpus = context_.buffers.has_gpu() ? copy::cpus_near_device(*context_.cuda, 0) : std::vector<int>()});
  threads_->run(most, (bytes + kShareBytes - 1) / kShareBytes, [&](std::size_t share) {
    const std::size_t begin = share * kShareBytes;
    copy_share(begin, std::min(kShareBytes, bytes - begin));
  });
}

// Non-temporal stores, so that the chunk is not read first and the copy engine need not fetch it from a CPU cache (two H200,
// 4 MiB in windows: 9.4 GB/s by one thread through the caches, 14 by two and 27 by four past them).
void shm_ring_rndv::fill_by_threads(std::byte* chunk, const void* source, std::uint64_t bytes) {
  copy_by_threads(copy::queue_ring::kMaxFillers, bytes, [&](std::size_t begin, std::size_t size) {
    arch::copy_to(arch::mapping_type::wc, chunk + begin, static_cast<const std::byte*>(source) + begin, size);
  });
}

// Through the caches: stores past them are faster, but then it takes the application longer to read the message
// (docs/results/p2p, ring_threads_h200).
void shm_ring_rndv::empty_by_threads(void* destination, const std::byte* chunk, std::uint64_t bytes) {
  copy_by_threads(copy::queue_ring::kMaxThreads, bytes, [&](std::size_t begin, std::size_t size) {
    std::memcpy(static_cast<std::byte*>(destination) + begin, chunk + begin, size);
  });
}

void shm_ring_rndv::chunk_filled(std::uint64_t sender, const shm_ring::label& label, const status& done) {
  operation* const op = context_.operations.find(sender);
  if (op == nullptr || op->has_ended()) return;
  auto& state = *op->transfer;
  state.ended += label.bytes;
  if (label.code != 0) state.fail(label.code, done ? "the memory of the message could not be read" : done.error().message);
  if (state.ended == state.wanted) rendezvous_.finish_send(*op);
}

// ---- The receiver

bool shm_ring_rndv::empty_ring(int source_rank) {
  auto& end_in = rings(source_rank).inbound;
  if (end_in.ring == nullptr) return false;
  auto& ring = *end_in.ring;
  const auto begun = end_in.begun, ended = end_in.ended;
  const auto published = ring.published().load(std::memory_order_acquire);
  while (end_in.begun < published && end_in.begun - end_in.ended < shm_ring::kChunks) {
    const auto slot = end_in.begun % shm_ring::kChunks;
    auto& label = end_in.labels[slot] = ring.label_of(end_in.begun);
    label.code = begin_emptying(source_rank, label, ring, end_in.begun, end_in.copies[slot]);
    ++end_in.begun;
  }
  while (end_in.ended < end_in.begun) {
    const auto slot = end_in.ended % shm_ring::kChunks;
    const auto done = end_in.copies[slot].test();
    if (!done) break;
    const auto label = end_in.labels[slot];
    ring.emptied().store(++end_in.ended, std::memory_order_release);
    chunk_emptied(label, *done);
  }
  if (end_in.begun != begun || end_in.ended != ended) note_step(source_rank);
  // Keep the ring active while receives from this peer expect data.
  return end_in.ended < end_in.begun || end_in.expected != 0;
}

// Returns the chunk's result so far. A chunk of an operation that has ended meanwhile is only counted.
int shm_ring_rndv::begin_emptying(int source_rank, const shm_ring::label& label, shm_ring& ring, std::uint64_t number,
                                  chunk_copy& copy) {
  copy.is_pending = false;
  operation* const receive = context_.operations.find(label.op);
  if (label.code != 0 || receive == nullptr || receive->peer != source_rank || receive->state != operation_state::moving)
    return label.code;
  auto& state = *receive->transfer;
  if (label.bytes > ring.chunk_bytes() || label.offset > state.wanted || label.bytes > state.wanted - label.offset)
    return EPROTO;
  if (state.code != 0) return state.code;
  if (is_shared_by_threads(*receive, label.bytes, 2 * kShareBytes)) {
    empty_by_threads(copy::host_pointer(receive->range.address + label.offset), ring.chunk(number), label.bytes);
    return 0;
  }
  if (receive->range.is_device && state.access == touch::any) ring.pin(*context_.buffers.planner(), state.device_ordinal);
  const auto begun = copy.begin(context_, receive->range, label.offset, ring.chunk(number), label.bytes,
                                chunk_direction::from_chunk, state.access);
  return begun.code();
}

void shm_ring_rndv::chunk_emptied(const shm_ring::label& label, const status& done) {
  operation* const receive = context_.operations.find(label.op);
  if (receive == nullptr || receive->state != operation_state::moving) return;
  auto& state = *receive->transfer;
  state.ended += label.bytes;
  if (label.code != 0 || !done)
    state.fail(label.code != 0 ? label.code : done.code(), !done                     ? done.error().message
                                                           : label.code == ECANCELED ? kTakenBack
                                                                                     : "a chunk of the message could not be "
                                                                                       "copied");
  if (state.ended < state.wanted) return;
  --rings(receive->peer).inbound.expected;
  rendezvous_.finish_receive(*receive, state.code, std::move(state.message));
}

// ---- Abort

bool shm_ring_rndv::abort(operation& op, const abort_reason& reason) {
  auto& pair = rings(op.peer);
  switch (reason.cause) {
    case abort_cause::revoked:
      return revoke(op, reason);
    case abort_cause::withdrawn:  // the sender ends what it moves itself
      return false;
    case abort_cause::refused:
      if (!op.transfer->is_receive) return false;
      --pair.inbound.expected;
      break;
    case abort_cause::peer_lost:
      pair.fill_queue.remove(&op);
      break;
  }
  context_.end(op, reason.code, reason.message);
  return true;
}

// Moves the remaining chunks without accessing the message's memory.
bool shm_ring_rndv::revoke(operation& op, const abort_reason& reason) {
  auto& state = *op.transfer;
  state.is_revoked = state.is_receive;
  state.fail(reason.code, reason.message);
  const auto& end_in = rings(op.peer).inbound;
  const auto& end_out = rings(op.peer).outbound;
  for (std::size_t slot = 0; slot < shm_ring::kChunks; ++slot) {
    const bool is_ours = state.is_receive ? end_in.copies[slot].is_pending && end_in.labels[slot].op == op.id()
                                          : end_out.copies[slot].is_pending && end_out.senders[slot] == op.id();
    if (is_ours) return false;
  }
  return true;
}

void shm_ring_rndv::forget(int rank) {
  std::erase(busy_peers_, rank);
  set_in_flight(busy_peers_.size());
  for (ring_end* each : {&rings(rank).outbound, &rings(rank).inbound}) {
    for (auto& copy : each->copies) copy = {};  // waits for copies in progress
    each->ring.reset();
    each->refusal = ECONNRESET;
  }
}

void shm_ring_rndv::admit(int rank) { rings(rank) = {}; }

}  // namespace pl::messaging
