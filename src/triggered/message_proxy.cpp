// SPDX-License-Identifier: Apache-2.0
#include "triggered/message_proxy.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace pl::triggered {
namespace {

constexpr std::uint64_t count_pieces(std::uint64_t bytes, std::uint64_t chunk_bytes) noexcept {
  return bytes <= kSmallBytes ? 1 : (bytes - 1) / chunk_bytes + 1;
}

}  // namespace

message_proxy::message_proxy(std::shared_ptr<channel_core> core, messaging::messenger& messages, proxy_thread& proxy,
                             receive_slots& windows, staging_pool::ring slots, const put_chunking& chunking,
                             std::size_t message_bytes)
    : core_(std::move(core)),
      messages_(messages),
      proxy_(proxy),
      windows_(windows),
      slots_(std::move(slots)),
      chunking_(chunking),
      message_bytes_(message_bytes) {
  for (unsigned i = 0; i < kInbox; ++i) expect_data(i);
  expect_credit();
  // A stream that is released from waiting for a slot writes into it, so its message must have left before.
  core_->are_slots_free.store(false, std::memory_order_release);
}

message_proxy::~message_proxy() {
  is_stopped_ = true;
  for (; copies_ended_ != copies_begun_; ++copies_ended_) {
    const auto number = copies_[(copies_ended_ + 1) % kInbox].number;
    for (auto done = windows_.engine()->is_done(number); done && !*done; done = windows_.engine()->is_done(number))
      sched_yield();
  }
}

// ---- The channel's thread

bool message_proxy::has_room(std::uint64_t bytes) const noexcept {
  if (puts_in_.load(std::memory_order_relaxed) - puts_left_.load(std::memory_order_acquire) >= kPuts) return false;
  const auto queued = queued_.load(std::memory_order_relaxed) - rung();
  return queued == 0 || queued + count_pieces(bytes, chunking_.chunk_of(bytes)) <= kMaxQueued;
}

void message_proxy::publish(const put& transfer) noexcept {
  const auto number = puts_in_.load(std::memory_order_relaxed);
  const std::uint64_t before = queued_.load(std::memory_order_relaxed), chunk_bytes = chunking_.chunk_of(transfer.bytes),
                      count = count_pieces(transfer.bytes, chunk_bytes);
  const bool is_small = transfer.bytes <= kSmallBytes;
  puts_[number % kPuts] = {transfer, before + 1, count, chunk_bytes, is_small ? 0 : chunks_ + 1};
  if (!is_small) chunks_ += count;
  puts_in_.store(number + 1, std::memory_order_release);
  queued_.store(before + count, std::memory_order_seq_cst);
}

std::byte* message_proxy::place_of(std::uint64_t put_index, std::uint64_t piece_index) const noexcept {
  const auto first = puts_[put_index % kPuts].first_chunk;
  return first == 0 ? slots_.small_slot(put_index) : slots_.slot(first + piece_index);
}

std::uint64_t message_proxy::bytes_of(const chunked_put& transfer, std::uint64_t piece_index) noexcept {
  if (transfer.first_chunk == 0) return transfer.bytes;
  return std::min(transfer.bytes - piece_index * transfer.chunk_bytes, transfer.chunk_bytes);
}

send_queue::piece message_proxy::piece_at(std::uint64_t number) const noexcept {
  const auto& transfer = last();
  piece out;
  out.host = place_of(puts_in_.load(std::memory_order_relaxed) - 1, number) + kHeadBytes;
  out.gpu = slots_.gpu(out.host);
  out.bytes = bytes_of(transfer, number);
  const auto chunk = transfer.first_chunk + number;
  if (transfer.first_chunk != 0 && chunk > chunks_left_.load(std::memory_order_acquire) + kSlots)
    out.staged = chunk - kSlots;
  out.doorbell_value = transfer.first + number;
  out.doorbell_address = doorbell_word();
  return out;
}

void message_proxy::take_back() noexcept {
  const auto number = puts_in_.load(std::memory_order_relaxed) - 1;
  const auto& transfer = puts_[number % kPuts];
  if (transfer.first_chunk != 0) chunks_ = transfer.first_chunk - 1;
  puts_in_.store(number, std::memory_order_release);
  queued_.store(transfer.first - 1, std::memory_order_seq_cst);
}

void message_proxy::publish_release(std::uint64_t sequence) noexcept { release_.store(sequence, std::memory_order_seq_cst); }

void message_proxy::armed() noexcept {
  armed_.store(queued_.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  release_armed_.store(release_.load(std::memory_order_relaxed), std::memory_order_seq_cst);
}

std::string message_proxy::report() const {
  return "  proxy: " + std::to_string(queued_.load(std::memory_order_relaxed)) + " pieces queued, " +
         std::to_string(rung()) + " ready to be sent, " + std::to_string(left_.load(std::memory_order_acquire)) + " sent; " +
         std::to_string(got_.load(std::memory_order_relaxed)) + " messages have come; large ones are stored by " +
         (windows_.engine() != nullptr ? "a copy engine" : "the CPU: " + windows_.why_no_engine()) + "\n";
}

// ---- The proxy thread

// The round has made progress already: requests are only looked at here, because testing one that has not ended would make
// it again, by a system call over TCP.
bool message_proxy::advance(bool is_round_of_messages) {
  bool has_moved = send_rung();
  has_moved |= end_copies();
  has_moved |= send_credit();
  if (!is_round_of_messages && !has_moved) return false;
  has_moved |= retire();
  has_moved |= take_data();
  has_moved |= take_credits();
  return has_moved;
}

bool message_proxy::send_rung() {
  const auto ready = rung();
  if (begun_ >= ready || messages_begun_ - messages_left_ >= kSends) return false;
  static_cast<void>(queued_.load(std::memory_order_acquire));  // the puts that rang are in the ring
  while (begun_ < ready && messages_begun_ - messages_left_ < kSends) {
    if (current_.place == nullptr) begin_piece(begun_ + 1);
    send_next_message();
  }
  return true;
}

void message_proxy::begin_piece(std::uint64_t number) {
  const auto& transfer = puts_[puts_begun_ % kPuts];
  const auto index = number - transfer.first;
  current_ = {};
  current_.place = place_of(puts_begun_, index);
  current_.bytes = bytes_of(transfer, index);
  current_.message_bytes = message_bytes_ != 0 ? std::min<std::uint64_t>(message_bytes_, current_.bytes) : current_.bytes;
  current_.ends_put = index + 1 == transfer.pieces;
  current_.is_chunk = transfer.first_chunk != 0;
  chunk_head head;
  head.window = transfer.window;
  head.offset = transfer.offset + index * transfer.chunk_bytes;
  head.bytes = current_.bytes;
  head.sequence = current_.ends_put ? transfer.sequence : 0;
  head.message_bytes = current_.message_bytes;
  std::memcpy(current_.place, &head, sizeof head);
  if (current_.message_bytes == current_.bytes) return;
  chunk_tail tail;
  tail.offset = head.offset;
  std::memcpy(current_.place + kHeadBytes + current_.bytes, &tail, sizeof tail);
}

void message_proxy::send_next_message() {
  const auto part = std::min(current_.message_bytes, current_.bytes - current_.sent);
  const bool is_first = current_.sent == 0, is_last = current_.sent + part == current_.bytes;
  const auto* const begin = current_.place + (is_first ? 0 : kHeadBytes + current_.sent);
  const auto bytes = part + (is_first ? kHeadBytes : 0) + (is_last && !is_first ? sizeof(chunk_tail) : 0);
  auto& message = sends_[++messages_begun_ % kSends];
  message.sending = messages_.isend(core_->peer, messaging::host_buffer(begin, bytes), tag(message_kind::data));
  message.place = current_.place;
  message.piece_bytes = current_.bytes;
  message.ends_piece = is_last;
  message.ends_put = is_last && current_.ends_put;
  message.is_chunk = current_.is_chunk;
  current_.sent += part;
  if (!is_last) return;
  if (current_.ends_put) ++puts_begun_;
  current_.place = nullptr;
  ++begun_;
}

// In order: the stream waits for a count.
bool message_proxy::retire() {
  const auto before = messages_left_;
  std::uint64_t whole = 0, chunks = 0, puts = 0;
  while (messages_left_ < messages_begun_) {
    auto& message = sends_[(messages_left_ + 1) % kSends];
    if (!message.sending.has_ended()) break;
    if (const auto done = message.sending.outcome(); !done && !is_stopped_) fail(done.error());
    message.sending = {};
    ++messages_left_;
    whole += message.ends_piece ? 1 : 0;
    chunks += message.ends_piece && message.is_chunk ? 1 : 0;
    puts += message.ends_put ? 1 : 0;
  }
  if (messages_left_ == before) return false;
  left_.store(left_.load(std::memory_order_relaxed) + whole, std::memory_order_release);
  puts_left_.store(puts_left_.load(std::memory_order_relaxed) + puts, std::memory_order_release);
  if (chunks == 0) return true;
  const auto staged = chunks_left_.load(std::memory_order_relaxed) + chunks;
  chunks_left_.store(staged, std::memory_order_release);
  if (is_alive()) core_->words->store(core_->index, offsetof(gpu_words, staged), staged);
  return true;
}

// One credit message at a time; the next one carries the latest value.
bool message_proxy::send_credit() {
  const auto released = consumed();
  if (released == credit_) return false;
  if (!credit_sending_.has_ended()) return false;
  credit_ = released;
  credit_sending_ =
      messages_.isend(core_->peer, messaging::host_buffer(&credit_, sizeof credit_), tag(message_kind::credit));
  ++credits_sent_;
  return true;
}

bool message_proxy::take_data() {
  bool has_moved = false;
  for (;;) {
    const auto index = static_cast<unsigned>(got_.load(std::memory_order_relaxed) % kInbox);
    auto& coming = inbox_[index];
    if (coming.is_empty() || !coming.has_ended()) return has_moved;
    const auto done = coming.outcome();
    if (!done && done.code() != EMSGSIZE) {  // the peer is gone: nothing more comes
      fail(done.error());
      coming = {};
      return true;
    }
    const auto copies = copies_begun_;
    if (is_alive()) {
      const auto taken = done ? take_message(index, coming.info().bytes) : done;
      if (taken.code() == EAGAIN) return has_moved;
      if (!taken) fail(taken.error());
    }
    if (copies_begun_ == copies) expect_data(index);
    else coming = {};
    got_.store(got_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    has_moved = true;
  }
}

// EAGAIN: not yet, and nothing has changed.
status message_proxy::take_message(unsigned index, std::uint64_t bytes) {
  const auto* message = slots_.inbox(index);
  const auto before = arriving_;
  const auto before_left = arriving_left_;
  if (arriving_left_ == 0) {
    if (auto taken = take_head(message, bytes); !taken) return taken;
    message += kHeadBytes;
    bytes -= kHeadBytes;
  }
  if (auto checked = check_part(message, bytes); !checked) return checked;
  auto stored = store_part(index, message, std::min(arriving_left_, arriving_.message_bytes));
  if (stored.code() == EAGAIN) {
    arriving_ = before;
    arriving_left_ = before_left;
  }
  return stored;
}

status message_proxy::take_head(const std::byte* message, std::uint64_t bytes) {
  chunk_head head;
  if (bytes < kHeadBytes) return failure{EPROTO, "the peer sent a piece without its head"};
  std::memcpy(&head, message, sizeof head);
  const auto first = std::min(head.bytes, head.message_bytes);
  if (head.magic != chunk_head::kMagic || first != bytes - kHeadBytes || (first == 0 && head.bytes != 0))
    return failure{EPROTO, "the peer sent a piece whose head does not fit its length"};
  if (head.sequence != 0 && head.sequence != taken_sequence_ + 1)
    return failure{EPROTO,
                   "the peer sent put " + std::to_string(head.sequence) + " after put " + std::to_string(taken_sequence_)};
  arriving_ = head;
  arriving_left_ = head.bytes;
  return {};
}

// `bytes`: with the tail, in the last one of several messages.
status message_proxy::check_part(const std::byte* part, std::uint64_t bytes) {
  const auto offset = arriving_.bytes - arriving_left_, wanted = std::min(arriving_left_, arriving_.message_bytes);
  const bool has_tail = wanted == arriving_left_ && offset != 0;
  if (bytes != wanted + (has_tail ? sizeof(chunk_tail) : 0))
    return failure{EPROTO, "the peer sent a part of a piece that does not fit the length of the piece"};
  if (has_tail) {
    chunk_tail tail;
    std::memcpy(&tail, part + wanted, sizeof tail);
    if (tail.magic != chunk_tail::kMagic || tail.offset != arriving_.offset)
      return failure{EPROTO, "the peer abandoned a put after it had sent a part of it"};
  }
  if (arriving_.offset > ~std::uint64_t{0} - offset) return failure{EPROTO, "the peer put beyond the end of all memory"};
  return {};
}

// By the engine, or by the CPU once the engine has ended what came before.
status message_proxy::store_part(unsigned index, const std::byte* part, std::uint64_t bytes) {
  const auto offset = arriving_.offset + arriving_.bytes - arriving_left_;
  const auto sequence = bytes == arriving_left_ ? arriving_.sequence : 0;
  auto by_engine = begin_copy(index, part, bytes);
  if (!by_engine) return by_engine.error();
  if (!*by_engine) {
    if (copies_ended_ != copies_begun_) return failure{EAGAIN, "a copy is under way"};
    if (bytes != 0)
      if (auto stored = windows_.store(arriving_.window, offset, part, bytes); !stored) return stored;
  }
  arriving_left_ -= bytes;
  if (sequence == 0) return {};
  taken_sequence_ = sequence;
  if (!*by_engine) signal(sequence);
  return {};
}

result<bool> message_proxy::begin_copy(unsigned index, const std::byte* part, std::uint64_t bytes) {
  auto* const engine = windows_.engine();
  if (engine == nullptr || !slots_.has_engine() || bytes < kEngineBytes) return false;
  const auto offset = arriving_.offset + arriving_.bytes - arriving_left_;
  if (auto inside = windows_.check(arriving_.window, offset, bytes); !inside) return inside.error();
  const auto begun = engine->begin(arriving_.window, offset, slots_.engine_address(part), bytes);
  if (!begun) return begun.error();
  if (!*begun) return false;
  copies_[++copies_begun_ % kInbox] = {**begun, index, bytes == arriving_left_ ? arriving_.sequence : 0};
  return true;
}

bool message_proxy::end_copies() {
  const auto before = copies_ended_;
  while (copies_ended_ != copies_begun_) {
    const auto& first = copies_[(copies_ended_ + 1) % kInbox];
    const auto done = windows_.engine()->is_done(first.number);
    if (done && !*done) break;
    // A channel that has ended touches no memory any more.
    if (!done) fail(done.error());
    else if (first.sequence != 0 && is_alive()) signal(first.sequence);
    ++copies_ended_;
    expect_data(first.index);
  }
  return copies_ended_ != before;
}

void message_proxy::signal(std::uint64_t sequence) {
  last_sequence_ = sequence;
  core_->words->store(core_->index, offsetof(gpu_words, signal), sequence);
}

bool message_proxy::take_credits() {
  if (credit_coming_.is_empty() || !credit_coming_.has_ended()) return false;
  const auto done = credit_coming_.outcome();
  if (!done) {
    fail(done.error());
    credit_coming_ = {};
    return true;
  }
  acked_ = credit_in_;
  if (is_alive()) core_->words->store(core_->index, offsetof(gpu_words, ack), acked_);
  ++credits_got_;
  expect_credit();
  return true;
}

void message_proxy::expect_data(unsigned index) {
  inbox_[index] =
      messages_.irecv(core_->peer, messaging::host_buffer(slots_.inbox(index), kSlotBytes), tag(message_kind::data));
}

void message_proxy::expect_credit() {
  credit_coming_ =
      messages_.irecv(core_->peer, messaging::host_buffer(&credit_in_, sizeof credit_in_), tag(message_kind::credit));
}

// Failures after the peer has closed are ignored: nothing is missing, and the peer expects nothing more.
void message_proxy::fail(const failure& reason) {
  if (!core_->has_peer_left()) proxy_.fail(*core_, reason.code, reason.message);
}

// ---- The end

void message_proxy::stop() {
  is_stopped_ = true;
  for (auto& message : sends_)
    if (!message.sending.is_empty()) static_cast<void>(message.sending.cancel());
  if (!credit_sending_.is_empty()) static_cast<void>(credit_sending_.cancel());
}

// Still receives messages, so that none is left to match the receives of a later channel.
bool message_proxy::drain() {
  static_cast<void>(retire());
  static_cast<void>(end_copies());
  static_cast<void>(take_data());
  static_cast<void>(take_credits());
  if (!credit_sending_.is_empty() && credit_sending_.has_ended()) credit_sending_ = {};
  const bool is_over = messages_left_ == messages_begun_ && copies_ended_ == copies_begun_ && credit_sending_.is_empty() &&
                       consumed() == release_.load(std::memory_order_seq_cst);
  if (is_over) core_->are_slots_free.store(true, std::memory_order_release);
  return is_over;
}

void message_proxy::give_up() {
  for (auto number = messages_left_ + 1; number <= messages_begun_; ++number) {
    const auto& message = sends_[number % kSends];
    std::memset(message.place, 0, sizeof(chunk_head));
    std::memset(message.place + kHeadBytes + message.piece_bytes, 0, sizeof(chunk_tail));
  }
  core_->are_slots_free.store(true, std::memory_order_release);
}

bool message_proxy::has_sent_all() const noexcept {
  return begun_ == queued_.load(std::memory_order_seq_cst) && messages_left_ == messages_begun_ &&
         credit_ == release_.load(std::memory_order_seq_cst);
}

// A stream stands where only a message lets it go on, or one of ours is under way. A stream that has not come to its wait
// rings first, most of the time, and is seen sooner by who does not ask the network in between.
bool message_proxy::awaits_message() const noexcept {
  if (messages_left_ != messages_begun_ || !credit_sending_.has_ended()) return true;
  const auto reached = core_->reached();
  if (reached != 0 && static_cast<std::int64_t>(last_sequence_ - core_->target(reached)) < 0) return true;
  const auto depth = core_->options.depth;
  if (depth == 0) return false;
  const auto held = __atomic_load_n(&core_->host().put_reached, __ATOMIC_ACQUIRE);
  return held != 0 && static_cast<std::int64_t>(acked_ - (held - depth)) < 0;
}

// Messages ring no doorbell: one is expected while a wait is queued.
bool message_proxy::expects_doorbell() const noexcept {
  if (core_->waits.load(std::memory_order_seq_cst) != core_->passed()) return true;
  const auto queued = queued_.load(std::memory_order_seq_cst), ready = rung();
  if (ready != begun_ || messages_left_ != messages_begun_) return true;
  if (queued != ready && armed_.load(std::memory_order_seq_cst) != queued) return true;
  const auto release = release_.load(std::memory_order_seq_cst), released = consumed();
  if (released != credit_) return true;
  return release != released && release_armed_.load(std::memory_order_seq_cst) != release;
}

}  // namespace pl::triggered
