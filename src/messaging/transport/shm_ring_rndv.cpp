// SPDX-License-Identifier: Apache-2.0
// Through shared memory on one node: copies into chunks at one side and out of them at the other run at the same time, as
// many as the ring has chunks. Each chunk says whose it is, so transfers of one pair follow each other without a gap.
#include <algorithm>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"
#include "copy/calibration.hpp"
#include "messaging/messenger_core.hpp"

namespace pl::link {

namespace {

constexpr std::size_t kShareBytes = 32 << 10;  // of a chunk, for one thread: some 2 us
constexpr unsigned kMostFillers = 4;           // threads, the caller included

// Both sides work at the same time only on different chunks, and a copy by the GPU costs some microseconds whatever its
// size: short messages to a GPU go in chunks that its CPU stores. Where others wait behind a message, their chunks overlap
// with this one's, and few large ones cost the least.
std::uint64_t chunk_of(const operation& what, const shm_ring& ring, bool is_alone) {
  constexpr std::uint64_t kByCpu = 16 << 10, kByGpu = 64 << 10;
  const auto& state = *what.transfer;
  const bool by_gpu = what.at.is_device || (state.is_for_device && state.wanted > kByGpu);
  if (!by_gpu || state.how == touch::cpu_only) return std::min(ring.chunk_bytes(), std::max(kByCpu, state.wanted / 4));
  return is_alone ? std::min(ring.chunk_bytes(), std::max(kByGpu, state.wanted / 4)) : ring.chunk_bytes();
}

}  // namespace

bool engine::open_ring_out(peer_state& to) {
  if (to.out.ring != nullptr || to.out.refusal != 0) return to.out.ring != nullptr;
  auto made = shm_ring::make(limits_.ring_chunk_bytes);
  to.out.refusal = made.code();
  if (made) to.out.ring = *std::move(made);
  return to.out.ring != nullptr;
}

bool engine::open_ring_in(peer_state& from, const bulk_offer& offer) {
  if (from.in.ring == nullptr && from.in.refusal == 0) {
    auto opened = shm_ring::open(offer.ring);
    from.in.refusal = opened.code();
    if (opened) from.in.ring = *std::move(opened);
  }
  if (from.in.ring == nullptr) return false;
  if (std::find(ring_peers_.begin(), ring_peers_.end(), from.rank) == ring_peers_.end()) ring_peers_.push_back(from.rank);
  return true;
}

// The receiver: also where another way could not be gone.
void engine::start_ring(operation& to, peer_state& from, const bulk_offer& offer) {
  to.transfer->way = bulk_way::none;
  if (offer.has_ring && open_ring_in(from, offer)) {
    to.transfer->way = bulk_way::shared_ring;
    ++from.in.expected;
    return order(to, {.way = bulk_way::shared_ring, .receiver_is_device = to.at.is_device, .bytes = to.moved});
  }
  // Its owner may have ended after it had named the ring, and before anybody here has noticed.
  if (from.in.is_gone()) return finish_receive(to, ECONNRESET, format("rank %d is gone", from.rank));
  finish_receive(to, ENOMEM, "there is no shared memory for a message of the node");
}

void engine::advance_rings() {
  for (std::size_t i = 0; i < ring_peers_.size();) {
    auto& with = peer(ring_peers_[i]);
    const bool is_filling = fill_ring(with);
    const bool is_emptying = empty_ring(with);
    if (is_filling || is_emptying) ++i;
    else ring_peers_.erase(ring_peers_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// The first transfer's next chunks, as far as there is room; then those whose copy has ended are shown to the receiver.
bool engine::fill_ring(peer_state& to) {
  auto& end_out = to.out;
  if (end_out.ring == nullptr) return false;
  auto& ring = *end_out.ring;
  while (!to.to_fill.is_empty() && end_out.begun - ring.emptied().load(std::memory_order_acquire) < shm_ring::kChunks) {
    auto& what = *to.to_fill.first();
    auto& state = *what.transfer;
    const auto slot = end_out.begun % shm_ring::kChunks;
    const bool is_alone = to.to_fill.next(&what) == nullptr;
    const auto bytes = std::min(chunk_of(what, ring, is_alone), state.wanted - state.started);
    const auto begun = begin_filling(what, ring, end_out.begun, bytes, end_out.copies[slot]);
    end_out.labels[slot] = {what.peer_op, state.started, bytes, begun.code()};
    end_out.senders[slot] = what.id();
    state.started += bytes;
    ++end_out.begun;
    if (state.started == state.wanted) to.to_fill.remove(&what);
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
  return !to.to_fill.is_empty() || end_out.ended < end_out.begun;
}

status engine::begin_filling(operation& what, shm_ring& ring, std::uint64_t number, std::uint64_t bytes, chunk_copy& copy) {
  auto& state = *what.transfer;
  copy.is_pending = false;
  if (state.code != 0) return failure{state.code, state.message};  // the rest goes without its bytes
  if (!what.at.is_device && state.is_for_device && bytes > kShareBytes) {
    fill_by_threads(ring.chunk(number), copy::host_pointer(what.at.address + state.started), bytes);
    return {};
  }
  if (memory_.has_gpu() && what.at.is_device && state.how == touch::any) ring.pin(*memory_.planner(), state.device_ordinal);
  return begin_copy(copy, what.at, state.started, ring.chunk(number), bytes, true, state.how);
}

// For copy engines, which take it faster than one thread can put it there. Past the caches: the chunk is not read from
// memory first, and they need not fetch it from a CPU's (two H200, 4 MiB in windows: 9.4 GB/s by one thread through the
// caches, 14 by two and 27 by four past them).
void engine::fill_by_threads(void* chunk, const void* from, std::size_t bytes) {
  if (fillers_ == nullptr) {
    const unsigned most = memory_.has_gpu() ? memory_.planner()->threads() : 2;
    fillers_ = std::make_unique<copy::worker_pool>(
        copy::worker_pool::options{.helpers = std::min(most, kMostFillers) - 1,
                                   .cpus = memory_.has_gpu() ? copy::cpus_near_device(*cuda_, 0) : std::vector<int>()});
  }
  fillers_->run(kMostFillers, (bytes + kShareBytes - 1) / kShareBytes, [&](std::size_t share) {
    const std::size_t begin = share * kShareBytes;
    arch::copy_to(arch::mapping_type::wc, static_cast<char*>(chunk) + begin, static_cast<const char*>(from) + begin,
                  std::min(kShareBytes, bytes - begin));
  });
}

void engine::chunk_filled(std::uint64_t sender, const shm_ring::label& label, const status& done) {
  operation* const what = operations_.find(sender);
  if (what == nullptr || what->has_ended()) return;
  auto& state = *what->transfer;
  state.ended += label.bytes;
  if (label.code != 0 && state.code == 0) {
    state.code = label.code;
    state.message = done ? "the memory of the message could not be read" : done.error().message;
  }
  if (state.ended == state.wanted) finish_send(*what);
}

bool engine::empty_ring(peer_state& from) {
  auto& end_in = from.in;
  if (end_in.ring == nullptr) return false;
  auto& ring = *end_in.ring;
  const auto published = ring.published().load(std::memory_order_acquire);
  while (end_in.begun < published && end_in.begun - end_in.ended < shm_ring::kChunks) {
    const auto slot = end_in.begun % shm_ring::kChunks;
    auto& label = end_in.labels[slot] = ring.label_of(end_in.begun);
    label.code = begin_emptying(from, label, ring, end_in.begun, end_in.copies[slot]);
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
  // More may come as long as a receive of this peer has ordered it.
  return end_in.ended < end_in.begun || end_in.expected != 0;
}

// The chunk's outcome so far. A chunk for an operation that has ended meanwhile is only counted.
int engine::begin_emptying(peer_state& from, const shm_ring::label& label, shm_ring& ring, std::uint64_t number,
                           chunk_copy& copy) {
  copy.is_pending = false;
  operation* const to = operations_.find(label.op);
  if (label.code != 0 || to == nullptr || to->peer != from.rank || to->state != operation_state::moving) return label.code;
  auto& state = *to->transfer;
  if (label.bytes > ring.chunk_bytes() || label.offset > state.wanted || label.bytes > state.wanted - label.offset)
    return EPROTO;
  if (state.code != 0) return state.code;
  if (to->at.is_device && state.how == touch::any) ring.pin(*memory_.planner(), state.device_ordinal);
  return begin_copy(copy, to->at, label.offset, ring.chunk(number), label.bytes, false, state.how).code();
}

void engine::chunk_emptied(const shm_ring::label& label, const status& done) {
  operation* const to = operations_.find(label.op);
  if (to == nullptr || to->state != operation_state::moving) return;
  auto& state = *to->transfer;
  state.ended += label.bytes;
  if (state.code == 0 && (label.code != 0 || !done)) {
    state.code = label.code != 0 ? label.code : done.code();
    state.message = !done                     ? done.error().message
                    : label.code == ECANCELED ? kTakenBack
                                              : "a chunk of the message could not be copied";
  }
  if (state.ended < state.wanted) return;
  --peer(to->peer).in.expected;
  const int code = state.code;
  finish_receive(*to, code, std::move(state.message));
}

void engine::drop_rings(peer_state& of) {
  std::erase(ring_peers_, of.rank);
  for (ring_end* each : {&of.out, &of.in}) {
    for (auto& copy : each->copies) copy = {};  // waits for what still copies
    each->ring.reset();
    each->refusal = ECONNRESET;
  }
}

}  // namespace pl::link
