// SPDX-License-Identifier: Apache-2.0
#include "triggered/shm_proxy.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pl::triggered {
namespace {

// Puts of one channel before other channels get their turn.
constexpr unsigned kPutsOfARound = 32;

std::uint64_t seen(const std::uint64_t& word) noexcept { return __atomic_load_n(&word, __ATOMIC_SEQ_CST); }

}  // namespace

shm_proxy::shm_proxy(std::shared_ptr<channel_core> core, proxy_thread& proxy, receive_slots& windows,
                     shm_queue_pool::shm_queue ours, shm_queue_view theirs, std::shared_ptr<thread_wakeup> peer_wakeup,
                     const put_chunking& chunking)
    : core_(std::move(core)),
      proxy_(proxy),
      windows_(windows),
      ours_(std::move(ours)),
      theirs_(std::move(theirs)),
      peer_wakeup_(std::move(peer_wakeup)),
      chunking_(chunking) {
  // A stream that is released from waiting for a slot writes into it, so the peer must ignore the slot before.
  core_->are_slots_free.store(false, std::memory_order_release);
  core_->shm_queue.store(ours_.operator->(), std::memory_order_release);
}

// ---- The channel's thread

bool shm_proxy::has_room(std::uint64_t bytes) const noexcept {
  if (ours_->published.load(std::memory_order_relaxed) - ours_->stored.count() >= kShmPuts) return false;
  const auto queued = chunks_.load(std::memory_order_relaxed) - ours_->stored_chunks.count();
  return queued == 0 || queued + chunks_of(bytes, chunking_.chunk_of(bytes)) <= kMaxChunks;
}

void shm_proxy::publish(const put& transfer) noexcept {
  last_ = transfer;
  last_first_ = chunks_.load(std::memory_order_relaxed) + 1;
  last_chunk_bytes_ = chunking_.chunk_of(transfer.bytes);
  chunks_.store(last_first_ - 1 + chunks_of(transfer.bytes, last_chunk_bytes_), std::memory_order_seq_cst);
  ours_->puts[transfer.sequence % kShmPuts] = {transfer.offset, transfer.bytes, transfer.window,
                                               static_cast<std::uint32_t>(last_chunk_bytes_)};
  ours_->published.store(transfer.sequence, std::memory_order_seq_cst);
}

void shm_proxy::take_back() noexcept {
  ours_->published.store(last_.sequence - 1, std::memory_order_seq_cst);
  chunks_.store(last_first_ - 1, std::memory_order_seq_cst);
}

std::uint64_t shm_proxy::pieces() const noexcept {
  return std::max<std::uint64_t>(chunks_of(last_.bytes, last_chunk_bytes_), 1);
}

// The chunk that must be stored before a stream may write this chunk's slot; 0: the slot is free.
std::uint64_t shm_proxy::slot_awaited(std::uint64_t chunk) const noexcept {
  return chunk > ours_->stored_chunks.count() + kShmSlots ? chunk - kShmSlots : 0;
}

send_queue::piece shm_proxy::piece_at(std::uint64_t number) const noexcept {
  piece out;
  const bool is_last = number + 1 == pieces();
  out.doorbell_value = last_.sequence;
  out.doorbell_address = doorbell_word();
  if (chunks_of(last_.bytes, last_chunk_bytes_) == 0) {
    out.bytes = last_.bytes;
    out.host = ours_->small[last_.sequence % kShmPuts];
  } else {
    const auto chunk = last_first_ + number;
    out.bytes = std::min<std::uint64_t>(last_.bytes - number * last_chunk_bytes_, last_chunk_bytes_);
    out.host = ours_->slots[chunk % kShmSlots];
    out.staged = slot_awaited(chunk);
    if (!is_last) {
      out.doorbell_value = chunk;
      out.doorbell_address = ours_.gpu(&ours_->slot_doorbells[chunk % kShmSlots]);
    }
  }
  out.gpu = ours_.gpu(out.host);
  return out;
}

std::optional<send_queue::spread> shm_proxy::spread_out() const noexcept {
  if (!chunking_.is_spread(last_.bytes)) return {};
  spread out;
  out.slots = ours_.gpu(ours_->slots);
  out.slot_doorbells = ours_.gpu(ours_->slot_doorbells);
  out.slot_bytes = kShmChunkBytes;
  out.places = kShmSlots;
  out.piece_bytes = last_chunk_bytes_;
  out.first = last_first_;
  out.pieces = pieces();
  out.staged = slot_awaited(last_first_ + out.pieces - 1);
  out.doorbell_value = last_.sequence;
  return out;
}

void shm_proxy::publish_release(std::uint64_t sequence) noexcept {
  ours_->release.store(sequence, std::memory_order_seq_cst);
}

void shm_proxy::armed() noexcept {
  ours_->armed.store(ours_->published.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  ours_->release_armed.store(ours_->release.load(std::memory_order_relaxed), std::memory_order_seq_cst);
}

std::string shm_proxy::report() const {
  return "  proxy, by shared memory: " + std::to_string(ours_->published.load(std::memory_order_relaxed)) +
         " puts queued, " + std::to_string(seen(ours_->doorbell)) + " ready to be sent, " +
         std::to_string(ours_->stored.count()) + " taken by the peer; " + std::to_string(theirs_->stored.count()) +
         " have come\n";
}

// ---- The proxy thread

bool shm_proxy::advance(bool) {
  bool has_moved = take_puts(true);
  has_moved |= take_releases(true);
  has_moved |= free_slots();
  return has_moved;
}

bool shm_proxy::take_puts(bool is_storing) {
  const auto whole = seen(theirs_->doorbell);
  bool has_moved = false;
  for (unsigned i = 0; i < kPutsOfARound && stored_ < whole; ++i) {
    if (!take_put(stored_ + 1, true, is_storing)) return has_moved;
    has_moved = true;
  }
  // Chunks of the next put that have arrived already.
  if (stored_ == whole && theirs_->published.load(std::memory_order_acquire) > stored_ && is_chunk_here(stored_chunks_ + 1))
    has_moved |= take_put(stored_ + 1, false, is_storing);
  return has_moved;
}

bool shm_proxy::is_chunk_here(std::uint64_t chunk) const noexcept {
  return seen(theirs_->slot_doorbells[chunk % kShmSlots]) == chunk;
}

// False: no progress is possible now.
bool shm_proxy::take_put(std::uint64_t number, bool is_whole, bool is_storing) {
  if (part_ == 0) std::memcpy(&current_, &theirs_->puts[number % kShmPuts], sizeof current_);
  const auto& transfer = current_;
  status done;
  if (transfer.bytes > kInlineBytes && (transfer.chunk_bytes < kMinChunkBytes || transfer.chunk_bytes > kShmChunkBytes))
    done = failure{EPROTO, "the peer cuts puts into pieces of " + std::to_string(transfer.chunk_bytes) + " bytes"};
  const auto chunks = done ? chunks_here(transfer) : 0;
  if (done && is_storing && chunks == 0 && transfer.bytes != 0)
    done = store_chunk(transfer, 0, theirs_->small[number % kShmPuts], transfer.bytes);
  if (done) done = take_chunks(chunks, is_whole, is_storing);
  if (!done) {
    proxy_.fail(*core_, done.error().code, done.error().message);
    return false;
  }
  if (part_ < chunks) return !is_whole;
  if (is_storing) {
    // The copied bytes may be torn if the peer has released its streams meanwhile; it clears `use` before it does.
    if (!is_theirs_alive()) return false;
    core_->words->store(core_->index, offsetof(gpu_words, signal), number);
  }
  part_ = 0;
  if (!theirs_->stored.advance(theirs_.use(), stored_, number)) return false;
  stored_ = number;
  return true;
}

// Takes the chunks of `current_` that have arrived.
status shm_proxy::take_chunks(std::uint64_t chunks, bool is_whole, bool is_storing) {
  for (; part_ < chunks; ++part_) {
    const auto chunk = stored_chunks_ + 1;
    if (!is_chunk_here(chunk) && !is_whole) return {};
    const auto offset = part_ * current_.chunk_bytes;
    const auto count = std::min<std::uint64_t>(current_.bytes - offset, current_.chunk_bytes);
    if (is_storing)
      if (auto done = store_chunk(current_, offset, theirs_->slots[chunk % kShmSlots], count); !done) return done;
    if (!theirs_->stored_chunks.advance(theirs_.use(), stored_chunks_, chunk)) return {};
    stored_chunks_ = chunk;
    if (peer_wakeup_->is_asleep()) peer_wakeup_->ring();  // its streams may wait for the slot
  }
  return {};
}

status shm_proxy::store_chunk(const shm_put& transfer, std::uint64_t offset, const std::byte* bytes, std::uint64_t count) {
  if (transfer.offset > ~std::uint64_t{0} - offset) return failure{EPROTO, "the peer put beyond the end of all memory"};
  return windows_.store(transfer.window, transfer.offset + offset, bytes, count);
}

bool shm_proxy::take_releases(bool is_stored) {
  const auto released = seen(theirs_->consumed);
  if (released == acked_) return false;
  if (is_stored) core_->words->store(core_->index, offsetof(gpu_words, ack), released);
  if (!theirs_->acked.advance(theirs_.use(), acked_, released)) return false;
  acked_ = released;
  return true;
}

bool shm_proxy::free_slots() {
  const auto chunks = ours_->stored_chunks.count();
  if (chunks == staged_) return false;
  staged_ = chunks;
  core_->words->store(core_->index, offsetof(gpu_words, staged), chunks);
  return true;
}

// ---- The end

void shm_proxy::stop() { ours_->use.store(0, std::memory_order_seq_cst); }

// Still counts arriving puts, because the peer's end waits for the counts before it closes.
bool shm_proxy::drain() {
  static_cast<void>(take_puts(false));
  static_cast<void>(take_releases(false));
  core_->are_slots_free.store(true, std::memory_order_release);
  return true;
}

bool shm_proxy::has_sent_all() const noexcept {
  const auto puts = ours_->published.load(std::memory_order_seq_cst),
             released = ours_->release.load(std::memory_order_seq_cst);
  return seen(ours_->doorbell) == puts && ours_->stored.count() == puts && seen(ours_->consumed) == released &&
         ours_->acked.count() == released;
}

bool shm_proxy::expects_doorbell() const noexcept {
  const auto published = theirs_->published.load(std::memory_order_seq_cst);
  if (seen(theirs_->doorbell) != stored_ || (published != stored_ && is_chunk_here(stored_chunks_ + 1))) return true;
  if (published != stored_ && theirs_->armed.load(std::memory_order_seq_cst) != published) return true;
  const auto release = theirs_->release.load(std::memory_order_seq_cst), released = seen(theirs_->consumed);
  if (released != acked_) return true;
  if (release != released && theirs_->release_armed.load(std::memory_order_seq_cst) != release) return true;
  // The peer rings when it has taken chunks.
  return ours_->stored_chunks.count() != staged_;
}

}  // namespace pl::triggered
