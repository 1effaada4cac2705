// SPDX-License-Identifier: Apache-2.0
#include "triggered/shm_proxy.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pl::stream {
namespace {

// Of one channel before the others get their turn.
constexpr unsigned kPutsOfARound = 32;

std::uint64_t seen(const std::uint64_t& word) noexcept { return __atomic_load_n(&word, __ATOMIC_SEQ_CST); }

}  // namespace

lane_carrier::lane_carrier(std::shared_ptr<channel_core> core, service& watch, landing& windows, lane_pool::lane ours,
                           lane_view theirs, std::shared_ptr<wake_bell> their_bell, const lane_cut& cut)
    : core_(std::move(core)),
      watch_(watch),
      windows_(windows),
      ours_(std::move(ours)),
      theirs_(std::move(theirs)),
      their_bell_(std::move(their_bell)),
      cut_(cut) {
  // A stream that is let go from waiting for a slot writes into it: not before what the peer makes of that is without
  // meaning.
  core_->are_slots_free.store(false, std::memory_order_release);
  core_->lane.store(ours_.operator->(), std::memory_order_release);
}

// ---- The channel's thread

bool lane_carrier::has_room(std::uint64_t bytes) const noexcept {
  if (ours_->published.load(std::memory_order_relaxed) - ours_->landed.count() >= kLanePuts) return false;
  const auto queued = chunks_.load(std::memory_order_relaxed) - ours_->landed_chunks.count();
  return queued == 0 || queued + chunks_of(bytes, cut_.chunk_of(bytes)) <= kMostChunks;
}

void lane_carrier::publish(const put& transfer) noexcept {
  last_ = transfer;
  last_first_ = chunks_.load(std::memory_order_relaxed) + 1;
  last_chunk_bytes_ = cut_.chunk_of(transfer.bytes);
  chunks_.store(last_first_ - 1 + chunks_of(transfer.bytes, last_chunk_bytes_), std::memory_order_seq_cst);
  ours_->puts[transfer.sequence % kLanePuts] = {transfer.offset, transfer.bytes, transfer.window,
                                                static_cast<std::uint32_t>(last_chunk_bytes_)};
  ours_->published.store(transfer.sequence, std::memory_order_seq_cst);
}

void lane_carrier::take_back() noexcept {
  ours_->published.store(last_.sequence - 1, std::memory_order_seq_cst);
  chunks_.store(last_first_ - 1, std::memory_order_seq_cst);
}

std::uint64_t lane_carrier::pieces() const noexcept {
  return std::max<std::uint64_t>(chunks_of(last_.bytes, last_chunk_bytes_), 1);
}

// What has to have landed before a stream may write the chunk's slot; 0: it is free.
std::uint64_t lane_carrier::slot_awaited(std::uint64_t chunk) const noexcept {
  return chunk > ours_->landed_chunks.count() + kLaneSlots ? chunk - kLaneSlots : 0;
}

outlet::piece lane_carrier::piece_at(std::uint64_t number) const noexcept {
  piece out;
  const bool is_last = number + 1 == pieces();
  out.bell = last_.sequence;
  out.bell_word = doorbell_word();
  if (chunks_of(last_.bytes, last_chunk_bytes_) == 0) {
    out.bytes = last_.bytes;
    out.host = ours_->small[last_.sequence % kLanePuts];
  } else {
    const auto chunk = last_first_ + number;
    out.bytes = std::min<std::uint64_t>(last_.bytes - number * last_chunk_bytes_, last_chunk_bytes_);
    out.host = ours_->slots[chunk % kLaneSlots];
    out.staged = slot_awaited(chunk);
    if (!is_last) {
      out.bell = chunk;
      out.bell_word = ours_.gpu(&ours_->bells[chunk % kLaneSlots]);
    }
  }
  out.gpu = ours_.gpu(out.host);
  return out;
}

std::optional<outlet::spread> lane_carrier::spread_out() const noexcept {
  if (!cut_.is_spread(last_.bytes)) return {};
  spread out;
  out.slots = ours_.gpu(ours_->slots);
  out.bells = ours_.gpu(ours_->bells);
  out.slot_bytes = kLaneChunkBytes;
  out.places = kLaneSlots;
  out.piece_bytes = last_chunk_bytes_;
  out.first = last_first_;
  out.pieces = pieces();
  out.staged = slot_awaited(last_first_ + out.pieces - 1);
  out.bell = last_.sequence;
  return out;
}

void lane_carrier::publish_release(std::uint64_t sequence) noexcept {
  ours_->release.store(sequence, std::memory_order_seq_cst);
}

void lane_carrier::armed() noexcept {
  ours_->armed.store(ours_->published.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  ours_->release_armed.store(ours_->release.load(std::memory_order_relaxed), std::memory_order_seq_cst);
}

std::string lane_carrier::report() const {
  return "  proxy, by shared memory: " + std::to_string(ours_->published.load(std::memory_order_relaxed)) +
         " puts queued, " + std::to_string(seen(ours_->doorbell)) + " ready to be sent, " +
         std::to_string(ours_->landed.count()) + " taken by the peer; " + std::to_string(theirs_->landed.count()) +
         " have come\n";
}

// ---- The service thread

bool lane_carrier::advance(bool) {
  bool has_moved = take_puts(true);
  has_moved |= take_releases(true);
  has_moved |= free_slots();
  return has_moved;
}

bool lane_carrier::take_puts(bool is_landing) {
  const auto whole = seen(theirs_->doorbell);
  bool has_moved = false;
  for (unsigned i = 0; i < kPutsOfARound && landed_ < whole; ++i) {
    if (!take_put(landed_ + 1, true, is_landing)) return has_moved;
    has_moved = true;
  }
  // The chunks of the next one that are here already.
  if (landed_ == whole && theirs_->published.load(std::memory_order_acquire) > landed_ && is_chunk_here(landed_chunks_ + 1))
    has_moved |= take_put(landed_ + 1, false, is_landing);
  return has_moved;
}

bool lane_carrier::is_chunk_here(std::uint64_t chunk) const noexcept {
  return seen(theirs_->bells[chunk % kLaneSlots]) == chunk;
}

// False: it goes no further.
bool lane_carrier::take_put(std::uint64_t number, bool is_whole, bool is_landing) {
  if (part_ == 0) std::memcpy(&current_, &theirs_->puts[number % kLanePuts], sizeof current_);
  const auto& transfer = current_;
  status done;
  if (transfer.bytes > kInlineBytes && (transfer.chunk_bytes < kLeastChunkBytes || transfer.chunk_bytes > kLaneChunkBytes))
    done = failure{EPROTO, "the peer cuts puts into pieces of " + std::to_string(transfer.chunk_bytes) + " bytes"};
  const auto chunks = done ? chunks_here(transfer) : 0;
  if (done && is_landing && chunks == 0 && transfer.bytes != 0)
    done = land(transfer, 0, theirs_->small[number % kLanePuts], transfer.bytes);
  if (done) done = take_chunks(chunks, is_whole, is_landing);
  if (!done) {
    watch_.fail(*core_, done.error().code, done.error().message);
    return false;
  }
  if (part_ < chunks) return !is_whole;
  if (is_landing) {
    // What was copied may be torn if the peer has let its streams go meanwhile: it says so before it does.
    if (!is_theirs_alive()) return false;
    core_->words->store(core_->index, offsetof(gpu_words, signal), number);
  }
  part_ = 0;
  if (!theirs_->landed.advance(theirs_.use(), landed_, number)) return false;
  landed_ = number;
  return true;
}

// Of the put in `current_`, as far as they are here.
status lane_carrier::take_chunks(std::uint64_t chunks, bool is_whole, bool is_landing) {
  for (; part_ < chunks; ++part_) {
    const auto chunk = landed_chunks_ + 1;
    if (!is_chunk_here(chunk) && !is_whole) return {};
    const auto offset = part_ * current_.chunk_bytes;
    const auto count = std::min<std::uint64_t>(current_.bytes - offset, current_.chunk_bytes);
    if (is_landing)
      if (auto done = land(current_, offset, theirs_->slots[chunk % kLaneSlots], count); !done) return done;
    if (!theirs_->landed_chunks.advance(theirs_.use(), landed_chunks_, chunk)) return {};
    landed_chunks_ = chunk;
    if (their_bell_->is_asleep()) their_bell_->ring();  // its streams may wait for the slot
  }
  return {};
}

status lane_carrier::land(const lane_put& transfer, std::uint64_t offset, const std::byte* bytes, std::uint64_t count) {
  if (transfer.offset > ~std::uint64_t{0} - offset) return failure{EPROTO, "the peer put beyond the end of all memory"};
  return windows_.store(transfer.window, transfer.offset + offset, bytes, count);
}

bool lane_carrier::take_releases(bool is_stored) {
  const auto released = seen(theirs_->consumed);
  if (released == acked_) return false;
  if (is_stored) core_->words->store(core_->index, offsetof(gpu_words, ack), released);
  if (!theirs_->acked.advance(theirs_.use(), acked_, released)) return false;
  acked_ = released;
  return true;
}

bool lane_carrier::free_slots() {
  const auto chunks = ours_->landed_chunks.count();
  if (chunks == staged_) return false;
  staged_ = chunks;
  core_->words->store(core_->index, offsetof(gpu_words, staged), chunks);
  return true;
}

// ---- The end

void lane_carrier::stop() { ours_->use.store(0, std::memory_order_seq_cst); }

// Goes on counting what comes, for which the peer's end waits before it closes.
bool lane_carrier::drain() {
  static_cast<void>(take_puts(false));
  static_cast<void>(take_releases(false));
  core_->are_slots_free.store(true, std::memory_order_release);
  return true;
}

bool lane_carrier::has_carried() const noexcept {
  const auto puts = ours_->published.load(std::memory_order_seq_cst),
             released = ours_->release.load(std::memory_order_seq_cst);
  return seen(ours_->doorbell) == puts && ours_->landed.count() == puts && seen(ours_->consumed) == released &&
         ours_->acked.count() == released;
}

bool lane_carrier::expects_bell() const noexcept {
  const auto published = theirs_->published.load(std::memory_order_seq_cst);
  if (seen(theirs_->doorbell) != landed_ || (published != landed_ && is_chunk_here(landed_chunks_ + 1))) return true;
  if (published != landed_ && theirs_->armed.load(std::memory_order_seq_cst) != published) return true;
  const auto release = theirs_->release.load(std::memory_order_seq_cst), released = seen(theirs_->consumed);
  if (released != acked_) return true;
  if (release != released && theirs_->release_armed.load(std::memory_order_seq_cst) != release) return true;
  // The peer rings when it has taken chunks.
  return ours_->landed_chunks.count() != staged_;
}

}  // namespace pl::stream
