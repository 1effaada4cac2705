// SPDX-License-Identifier: Apache-2.0
#include "triggered/message_proxy.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pl::triggered {
namespace {

// Testing a request makes progress, which the round has done already. So requests are tested when messages moved, and every
// few rounds for messages that complete without progress being reported.
constexpr unsigned kRoundsBetweenChecks = 8;

constexpr std::uint64_t count_chunks(std::uint64_t bytes, std::uint64_t chunk_bytes) noexcept {
  return bytes == 0 ? 1 : (bytes - 1) / chunk_bytes + 1;
}

}  // namespace

message_proxy::message_proxy(std::shared_ptr<channel_core> core, messaging::messenger& messages, proxy_thread& proxy,
                             receive_slots& windows, staging_pool::ring slots, const put_chunking& chunking)
    : core_(std::move(core)),
      messages_(messages),
      proxy_(proxy),
      windows_(windows),
      slots_(std::move(slots)),
      chunking_(chunking) {
  for (unsigned i = 0; i < kInbox; ++i) {
    inbox_[i].bytes = std::make_unique<std::byte[]>(kSlotBytes);
    expect_data(i);
  }
  expect_credit();
  // A stream that is released from waiting for a slot writes into it, so its message must have left before.
  core_->are_slots_free.store(false, std::memory_order_release);
}

// ---- The channel's thread

bool message_proxy::has_room(std::uint64_t bytes) const noexcept {
  if (puts_in_.load(std::memory_order_relaxed) - puts_out_.load(std::memory_order_acquire) >= kPuts) return false;
  const auto queued = queued_.load(std::memory_order_relaxed) - rung();
  return queued == 0 || queued + count_chunks(bytes, chunking_.chunk_of(bytes)) <= kMaxQueued;
}

void message_proxy::publish(const put& transfer) noexcept {
  const auto number = puts_in_.load(std::memory_order_relaxed);
  const std::uint64_t before = queued_.load(std::memory_order_relaxed), chunk_bytes = chunking_.chunk_of(transfer.bytes),
                      chunks = count_chunks(transfer.bytes, chunk_bytes);
  puts_[number % kPuts] = {transfer, before + 1, chunks, chunk_bytes};
  puts_in_.store(number + 1, std::memory_order_release);
  queued_.store(before + chunks, std::memory_order_seq_cst);
}

send_queue::piece message_proxy::piece_at(std::uint64_t number) const noexcept {
  const auto& transfer = last();
  const auto chunk = transfer.first + number;
  piece out;
  out.host = slots_.slot(chunk) + kHeadBytes;
  out.gpu = slots_.gpu_slot(chunk) + kHeadBytes;
  out.bytes = std::min(transfer.bytes - number * transfer.chunk_bytes, transfer.chunk_bytes);
  if (chunk > left_.load(std::memory_order_acquire) + kSlots) out.staged = chunk - kSlots;
  out.doorbell_value = chunk;
  out.doorbell_address = doorbell_word();
  return out;
}

void message_proxy::take_back() noexcept {
  const auto number = puts_in_.load(std::memory_order_relaxed) - 1;
  puts_in_.store(number, std::memory_order_release);
  queued_.store(puts_[number % kPuts].first - 1, std::memory_order_seq_cst);
}

void message_proxy::publish_release(std::uint64_t sequence) noexcept { release_.store(sequence, std::memory_order_seq_cst); }

void message_proxy::armed() noexcept {
  armed_.store(queued_.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  release_armed_.store(release_.load(std::memory_order_relaxed), std::memory_order_seq_cst);
}

std::string message_proxy::report() const {
  return "  proxy: " + std::to_string(queued_.load(std::memory_order_relaxed)) + " chunks queued, " +
         std::to_string(rung()) + " ready to be sent, " + std::to_string(left_.load(std::memory_order_acquire)) + " sent; " +
         std::to_string(got_.load(std::memory_order_relaxed)) + " have come\n";
}

// ---- The proxy thread

bool message_proxy::advance(bool has_progress) {
  bool has_moved = send_rung();
  has_moved |= send_credit();
  if (++quiet_rounds_ >= kRoundsBetweenChecks) has_progress = true;
  if (!has_progress && !has_moved) return false;
  quiet_rounds_ = 0;
  has_moved |= retire();
  has_moved |= take_data();
  has_moved |= take_credits();
  return has_moved;
}

bool message_proxy::send_rung() {
  const auto ready = rung();
  if (begun_ >= ready || begun_ - left_.load(std::memory_order_relaxed) >= kSlots) return false;
  static_cast<void>(queued_.load(std::memory_order_acquire));  // the puts that rang are in the ring
  while (begun_ < ready && begun_ - left_.load(std::memory_order_relaxed) < kSlots) send(begun_ + 1);
  return true;
}

void message_proxy::send(std::uint64_t chunk) {
  const auto number = puts_out_.load(std::memory_order_relaxed);
  const auto& transfer = puts_[number % kPuts];
  const auto offset = (chunk - transfer.first) * transfer.chunk_bytes;
  const bool is_last = chunk == transfer.first + transfer.chunks - 1;
  chunk_head head;
  head.window = transfer.window;
  head.offset = transfer.offset + offset;
  head.bytes = std::min(transfer.bytes - offset, transfer.chunk_bytes);
  head.sequence = is_last ? transfer.sequence : 0;
  std::memcpy(slots_.slot(chunk), &head, sizeof head);
  const auto payload = messaging::host_buffer(slots_.slot(chunk), kHeadBytes + head.bytes);
  sends_[chunk % kSlots] = messages_.isend(core_->peer, payload, tag(message_kind::data));
  begun_ = chunk;
  if (is_last) puts_out_.store(number + 1, std::memory_order_release);
}

// In order: the stream waits for a count.
bool message_proxy::retire() {
  const auto before = left_.load(std::memory_order_relaxed);
  auto left = before;
  for (; left < begun_; ++left) {
    auto& sending = sends_[(left + 1) % kSlots];
    if (!sending.test()) break;
    if (const auto done = sending.outcome(); !done && !is_stopped_) fail(done.error());
    sending = {};
  }
  if (left == before) return false;
  left_.store(left, std::memory_order_release);
  if (!is_stopped_ && core_->error.load(std::memory_order_acquire) == 0)
    core_->words->store(core_->index, offsetof(gpu_words, staged), left);
  return true;
}

// One credit message at a time; the next one carries the latest value.
bool message_proxy::send_credit() {
  const auto released = consumed();
  if (released == credit_) return false;
  if (!credit_sending_.is_empty() && !credit_sending_.test()) return false;
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
    auto& next = inbox_[index];
    if (next.coming.is_empty() || !next.coming.test()) return has_moved;
    const auto done = next.coming.outcome();
    if (!done && done.code() != EMSGSIZE) {  // the peer is gone: nothing more comes
      fail(done.error());
      next.coming = {};
      return true;
    }
    if (!is_stopped_ && core_->error.load(std::memory_order_acquire) == 0)
      if (const auto stored = done ? store_chunk(next.bytes.get(), next.coming.info()) : done; !stored) fail(stored.error());
    expect_data(index);
    got_.store(got_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    has_moved = true;
  }
}

status message_proxy::store_chunk(const std::byte* message, const messaging::message_info& info) {
  chunk_head head;
  if (info.bytes < kHeadBytes) return failure{EPROTO, "the peer sent a chunk without its head"};
  std::memcpy(&head, message, sizeof head);
  if (head.magic != chunk_head::kMagic || head.bytes != info.bytes - kHeadBytes)
    return failure{EPROTO, "the peer sent a chunk whose head does not fit its length"};
  if (head.sequence != 0 && head.sequence != last_sequence_ + 1)
    return failure{EPROTO,
                   "the peer sent put " + std::to_string(head.sequence) + " after put " + std::to_string(last_sequence_)};
  if (head.bytes != 0)
    if (auto stored = windows_.store(head.window, head.offset, message + kHeadBytes, head.bytes); !stored) return stored;
  if (head.sequence == 0) return {};
  last_sequence_ = head.sequence;
  core_->words->store(core_->index, offsetof(gpu_words, signal), head.sequence);
  return {};
}

bool message_proxy::take_credits() {
  if (credit_coming_.is_empty() || !credit_coming_.test()) return false;
  const auto done = credit_coming_.outcome();
  if (!done) {
    fail(done.error());
    credit_coming_ = {};
    return true;
  }
  if (!is_stopped_ && core_->error.load(std::memory_order_acquire) == 0)
    core_->words->store(core_->index, offsetof(gpu_words, ack), credit_in_);
  ++credits_got_;
  expect_credit();
  return true;
}

void message_proxy::expect_data(unsigned index) {
  inbox_[index].coming =
      messages_.irecv(core_->peer, messaging::host_buffer(inbox_[index].bytes.get(), kSlotBytes), tag(message_kind::data));
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
  for (auto& sending : sends_)
    if (!sending.is_empty()) static_cast<void>(sending.cancel());
  if (!credit_sending_.is_empty()) static_cast<void>(credit_sending_.cancel());
}

// Still receives messages, so that none is left to match the receives of a later channel.
bool message_proxy::drain() {
  static_cast<void>(retire());
  static_cast<void>(take_data());
  static_cast<void>(take_credits());
  if (!credit_sending_.is_empty() && credit_sending_.test()) credit_sending_ = {};
  const bool is_over = left_.load(std::memory_order_relaxed) == begun_ && credit_sending_.is_empty() &&
                       consumed() == release_.load(std::memory_order_seq_cst);
  if (is_over) core_->are_slots_free.store(true, std::memory_order_release);
  return is_over;
}

void message_proxy::give_up() {
  for (auto chunk = left_.load(std::memory_order_relaxed) + 1; chunk <= begun_; ++chunk)
    std::memset(slots_.slot(chunk), 0, sizeof(chunk_head));
  core_->are_slots_free.store(true, std::memory_order_release);
}

bool message_proxy::has_sent_all() const noexcept {
  return begun_ == queued_.load(std::memory_order_seq_cst) && left_.load(std::memory_order_relaxed) == begun_ &&
         credit_ == release_.load(std::memory_order_seq_cst);
}

// Messages ring no doorbell: one is expected while a wait is queued.
bool message_proxy::expects_doorbell() const noexcept {
  if (core_->waits.load(std::memory_order_seq_cst) != core_->passed()) return true;
  const auto queued = queued_.load(std::memory_order_seq_cst), ready = rung();
  if (ready != begun_ || left_.load(std::memory_order_relaxed) != begun_) return true;
  if (queued != ready && armed_.load(std::memory_order_seq_cst) != queued) return true;
  const auto release = release_.load(std::memory_order_seq_cst), released = consumed();
  if (released != credit_) return true;
  return release != released && release_armed_.load(std::memory_order_seq_cst) != release;
}

}  // namespace pl::triggered
