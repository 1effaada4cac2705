// SPDX-License-Identifier: Apache-2.0
#include "store/server/session.hpp"

#include <algorithm>
#include <asio/post.hpp>
#include <cstring>
#include <utility>

#include "arch/crc32c.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::store_server {
namespace {

using store_protocol::opcode;
constexpr std::size_t kMaxHandshakeBytes = store_protocol::kHeadBytes + store_protocol::kMaxTailBytes;
constexpr std::uint64_t kProgressBytes = 64 << 10;   // fewer bytes of a frame within stall_timeout_s are no progress
constexpr std::size_t kMaxWaitingBytes = 16u << 20;  // answers that the client has not taken yet
constexpr std::size_t kMaxDownloads = 256;
// The steps of clients that copy the bytes themselves
constexpr std::uint64_t kReportProgressFrom = 16u << 20, kProgressStepBytes = 4u << 20;
constexpr auto kWatchPause = std::chrono::seconds(1);

// Upper bound of the server's memory that a request occupies until it is answered, including its answer: a thousand
// requests may be accepted before the first answer of another thread is seen.
std::size_t most_bytes_of(const store_protocol::head& request) {
  constexpr std::uint64_t kEntryBytes = store_protocol::kMaxKeyBytes + 64;
  constexpr std::uint64_t kBatchBytes = 512u << 10;  // the longest list of outcomes in a batch
  // A frame of device memory stays until the answer, and so do the keys of a batch of gets.
  const bool retains_body = (request.flags & store_protocol::flag::device) != 0 || request.op == opcode::batch_get;
  const std::size_t kept =
      std::size_t{request.key_bytes} + request.tail_bytes + (retains_body ? std::size_t{request.body_bytes} : 0);
  switch (request.op) {
    case opcode::get:
      return kept + std::min<std::uint64_t>(request.value_bytes, kInlineBytes);
    case opcode::batch_get:
      return kept + std::min<std::uint64_t>(request.value_bytes, store_protocol::kMaxBodyBytes) + kBatchBytes;
    case opcode::batch_put:
    case opcode::batch_erase:
    case opcode::batch_exists:
      return kept + kBatchBytes;
    case opcode::find:
    case opcode::erase_prefix: {
      const std::uint64_t keys = request.value_bytes == 0 ? store::kMaxFindKeys : request.value_bytes;
      return kept + std::min(keys, std::uint64_t{store::kMaxFindKeys}) * kEntryBytes;
    }
    case opcode::sync_keys:
    case opcode::sync_requests:
      return kept + request.body_bytes;
    default:
      return kept;
  }
}

}  // namespace

session::session(asio::io_context& home, std::unique_ptr<transport> wire, server_parts& parts)
    : home_(home),
      wire_(std::move(wire)),
      parts_(parts),
      out_(
          *wire_, [this](std::error_code error) { close(error.message().c_str()); }, [this] { resume(); }),
      watch_timer_(home),
      room_timer_(home),
      queue_timer_(home),
      opened_ns_(monotonic_ns()),
      progress_ns_(opened_ns_) {
  ++parts_.counters.connections;
  ++parts_.counters.in_handshake;
}

session::~session() {
  out_.drop();
  drop_watches();
  --parts_.counters.connections;
  if (!is_handshake_done_) --parts_.counters.in_handshake;
  for (const auto& [id, one] : uploads_) release_hold(std::exchange(one->held_bytes, 0));
  for (const auto& [id, one] : uploads_)
    if (!one->refused) (void)parts_.engine.abort(engine_session_, one->granted.id);
  if (engine_session_ != 0)
    parts_.orphans.leave(engine_session_, mapped_ != mapping::none ? wire_->other().pid : 0, std::move(memory_));
}

bool session::join_principal() {
  const auto mine = parts_.principals.find(wire_->other().principal);
  connected_ = account_share(mine, &account::connections);
  buffers_ = account_share(mine, &account::buffer_bytes);
  memory_ = account_share(mine, &account::memory_bytes);
  pins_ = account_share(mine, &account::pinned_bytes);
  account_ = mine;
  connected_.set(1);
  return connected_.all() <= parts_.config.max_principal_connections;
}

void session::finish_handshake() {
  if (std::exchange(is_handshake_done_, true)) return;
  --parts_.counters.in_handshake;
}

void session::start() {
  watch();
  wire_->start([me = shared_from_this()](std::error_code error) {
    if (error) {
      ++me->parts_.counters.refused;
      me->parts_.log.write(event_log::level::warn, "refused",
                           {{"peer", me->wire_->other().origin}, {"why", error.message()}});
      return me->close("handshake");
    }
    if (!me->join_principal()) {
      ++me->parts_.counters.refused;
      me->parts_.log.write(event_log::level::warn, "refused",
                           {{"peer", me->wire_->other().origin},
                            {"principal", me->wire_->other().principal},
                            {"why", "it has max_principal_connections open"}});
      return me->close("too many connections");
    }
    me->engine_session_ = me->parts_.engine.open_session();
    me->read_more();
  });
}

// Once a second, closes clients that send no handshake, take no answers, send nothing of what they have begun, or are
// idle. Until then the timer keeps the connection alive, because nothing else may hold it while it waits for a disk or
// for changes.
void session::watch() {
  watch_timer_.expires_after(kWatchPause);
  watch_timer_.async_wait([me = shared_from_this()](std::error_code error) {
    if (error || me->closed_) return;
    const std::uint64_t now = monotonic_ns(), second = 1'000'000'000;
    if (!me->is_handshake_done_ && now - me->opened_ns_ > me->parts_.config.hello_timeout_s * second)
      return me->close("no handshake");
    const std::uint64_t writing_since = me->out_.writing_since_ns();
    if (writing_since != 0 && now - writing_since > me->parts_.config.stall_timeout_s * second) {
      ++me->parts_.counters.stalled;
      return me->close("takes nothing");
    }
    if (me->closed_) return;
    if (!me->may_parse()) {  // the store does not read now, so it would not see the end
      me->progress_ns_ = now;
      if (me->wire_->has_left()) return me->close("left before its answers");
    }
    const std::uint64_t quiet = now > me->progress_ns_ ? now - me->progress_ns_ : 0;
    if (me->is_sending_something() && quiet > me->parts_.config.stall_timeout_s * second) {
      ++me->parts_.counters.stalled;
      return me->close("sends nothing");
    }
    const std::uint64_t most_idle = me->parts_.config.idle_timeout_s * second;
    if (most_idle != 0 && quiet > most_idle && me->holds_nothing()) {
      ++me->parts_.counters.idle;
      return me->close("idle");
    }
    me->watch();
  });
}

void session::made_progress() {
  progress_bytes_ = 0;
  progress_ns_ = std::max(progress_ns_, parse_ns_);
}

bool session::is_sending_something() const { return !uploads_.empty() || incoming_ || !buffer_.empty(); }

bool session::holds_nothing() const {
  return in_flight_ == 0 && !is_sending_something() && grants_.empty() && ucx_grants_.empty() && pinned_.empty() &&
         out_.idle();
}

// ---- What the principal uses ------------------------------------------------------------------------------------------

status session::may_hold(std::uint64_t bytes, std::uint64_t others) const {
  const std::uint64_t now = memory_.all() + others;
  if (now == 0 || now + bytes <= max_held_bytes()) return {};
  return holds_enough(now);
}

std::uint64_t session::max_held_bytes() const {
  return parts_.engine.arena().size_bytes * parts_.config.max_principal_memory_percent / 100;
}

failure session::holds_enough(std::uint64_t held_bytes) const {
  return {ENOSPC,
          format("%s holds %llu bytes of the memory tier by operations in progress, and may hold %llu: end some of it "
                 "first (max_principal_memory_percent)",
                 wire_->other().principal.c_str(), static_cast<unsigned long long>(held_bytes),
                 static_cast<unsigned long long>(max_held_bytes()))};
}

void session::hold(std::uint64_t bytes) {
  granted_bytes_ += bytes;
  count_memory();
}

void session::release_hold(std::uint64_t bytes) {
  granted_bytes_ -= bytes;
  count_memory();
}

void session::hold_pin(std::uint64_t pin, std::uint64_t bytes, bool is_leased) {
  const std::uint64_t counted = std::max(bytes, kMinHeldBytes);
  pinned_[pin] = {counted, is_leased};
  pinned_bytes_ += counted;
  count_memory();
}

void session::count_memory() {
  memory_.set(granted_bytes_ + pinned_bytes_);
  pins_.set(pinned_bytes_);
}

void session::count_buffers() {
  constexpr std::size_t kStep = 64 << 10;  // a step, because answers come and go
  buffers_.set(buffer_.size() + answer_bytes() / kStep * kStep);
}

bool session::may_buffer_more() const { return buffers_.all() < parts_.config.max_principal_buffer_bytes; }

bool session::make_buffer_room() {
  // A client that fills the buffer gets a larger one.
  const bool larger =
      is_handshake_done_ && std::exchange(sends_much_, false) && buffer_.size() < receive_buffer::kUsualBytes;
  if (!buffer_.full() && !larger) return true;
  const std::size_t next = buffer_.next_size(is_handshake_done_ ? wanted_bytes_ : kMaxHandshakeBytes);
  if (is_handshake_done_ && next > receive_buffer::kUsualBytes && !may_buffer_more()) {
    fail_protocol({ENOBUFS, format("the frames that %s has begun take %llu bytes already: end some of them first "
                                   "(max_principal_buffer_bytes)",
                                   wire_->other().principal.c_str(), static_cast<unsigned long long>(buffers_.all()))});
    return false;
  }
  buffer_.resize(next);
  count_buffers();
  return true;
}

void session::close(const char* reason) {
  if (closed_) return;
  closed_ = true;
  gone_ = true;
  parts_.log.write(event_log::level::debug, "closed",
                   {{"peer", wire_->other().origin}, {"principal", wire_->other().principal}, {"why", reason}});
  watch_timer_.cancel();
  room_timer_.cancel();
  queue_timer_.cancel();
  leave_ucx();
  unlink_device();
  end_watches({ECONNRESET, "the connection was closed"});
  wire_->close();
  if (out_.writing_since_ns() == 0) out_.drop();
  parts_.ended(this);
}

void session::drain() {
  asio::post(home_, [me = shared_from_this()] {
    me->draining_ = true;
    me->end_watches({ESHUTDOWN, "the store is going down: begin the watch again when it is back"});
    me->finish_if_drained();
  });
}

void session::finish_if_drained() {
  if (draining_ && in_flight_ == 0 && out_.idle()) close("drained");
}

// ---- Reading -----------------------------------------------------------------------------------------------------------

bool session::may_parse() const {
  if (!room_queue_.empty() && (is_queue_full() || !may_make_room())) return false;
  return !closed_ && !broken_ && !waiting_for_room_ && live_requests() < parts_.config.max_requests &&
         answer_bytes() < kMaxWaitingBytes && out_.downloads() < kMaxDownloads && (answer_bytes() == 0 || may_buffer_more());
}

void session::resume() {
  if (!parsing_ && !closed_ && may_parse()) parse();
  finish_if_drained();
}

void session::read_more() {
  if (reading_ || closed_ || !may_parse()) return;
  asio::mutable_buffer destination;
  if (incoming_ && !incoming_->room.empty()) {
    destination = asio::buffer(incoming_->room.front().data(), incoming_->room.front().size());
  } else {
    buffer_.pack();
    if (buffer_.empty() && buffer_.size() > receive_buffer::kUsualBytes)
      buffer_.resize(receive_buffer::kAfterHandshakeBytes);
    if (is_handshake_done_ && buffer_.size() < receive_buffer::kAfterHandshakeBytes)
      buffer_.resize(receive_buffer::kAfterHandshakeBytes);
    if (!make_buffer_room()) return;
    // During a value, reads only the next frame's head, so that the bytes after it go straight to their destination.
    const bool head_alone = !uploads_.empty() && buffer_.empty();
    destination = asio::buffer(buffer_.room(), head_alone ? store_protocol::kHeadBytes : buffer_.room_bytes());
  }
  reading_ = true;
  wire_->read_some(destination,
                   [me = shared_from_this()](std::error_code error, std::size_t bytes) { me->received(error, bytes); });
}

void session::received(std::error_code error, std::size_t bytes) {
  reading_ = false;
  if (closed_) return;
  if (error) return close(error.message().c_str());
  progress_bytes_ += bytes;
  if (progress_bytes_ >= kProgressBytes) made_progress();
  if (incoming_ && !incoming_->room.empty()) {
    room_filled(bytes);
    if (incoming_->left_bytes == 0) body_complete();
  } else {
    buffer_.came(bytes);
    sends_much_ = buffer_.full();
  }
  parse();
}

void session::parse() {
  parsing_ = true;
  parse_ns_ = monotonic_ns();
  while (may_parse() && parse_one()) {}
  parsing_ = false;
  if (closed_) return;
  count_buffers();
  if (transfers_here != nullptr) transfers_here->flush();
  out_.flush(shared_from_this());
  read_more();
}

// Returns false if more bytes are needed.
bool session::parse_one() {
  if (incoming_) {
    fill_from_buffer();
    return !incoming_;
  }
  const auto have = buffered();
  if (have.size() < store_protocol::kHeadBytes) return false;
  const auto bytes = std::as_bytes(std::span(have));
  const auto header = store_protocol::decode_head(bytes.first<store_protocol::kHeadBytes>());
  if (!header) return fail_protocol(header.error()), false;
  const std::size_t front = store_protocol::kHeadBytes + header->key_bytes + header->tail_bytes;
  const std::size_t whole = front + (header->op == opcode::data ? 0 : header->body_bytes);
  if (!is_handshake_done_ && (header->op != opcode::hello || header->body_bytes > 0 || header->key_bytes > 0))
    return fail_protocol({EPROTO, "the first frame of a connection is hello"}), false;
  if (have.size() < whole) {
    wanted_bytes_ = whole;
    return false;
  }
  buffer_.take(whole);
  made_progress();
  return take_frame(bytes.first(front), *header, have.substr(front, whole - front));
}

bool session::take_frame(std::span<const std::byte> whole, const store_protocol::head& header, std::string_view body) {
  auto rest = store_protocol::decode_rest(header, whole);
  if (!rest) return fail_protocol(rest.error()), false;
  if ((header.flags & store_protocol::flag::reply) != 0)
    return fail_protocol({EPROTO, "an answer came from a client"}), false;
  if (header.op == opcode::data) {
    auto& next = incoming_.emplace(incoming_body{});
    next.frame = header;
    next.left_bytes = header.body_bytes;
    if (const auto found = uploads_.find(header.request_id); found != uploads_.end()) next.receiver = found->second;
    const bool wanted = next.receiver && !next.receiver->refused;
    if (wanted) {
      if (header.offset != next.receiver->have_bytes ||
          header.body_bytes > next.receiver->request->head.value_bytes - header.offset)
        return fail_protocol({EPROTO, "a piece of a value came that does not continue the one before"}), false;
      std::uint64_t offset = next.receiver->patch_at + header.offset, left = header.body_bytes;
      for (const auto& piece : next.receiver->granted.segments) {
        if (offset < piece.size_bytes && left > 0) {
          const std::uint64_t part = std::min(left, piece.size_bytes - offset);
          next.room.emplace_back(parts_.engine.arena().base + piece.offset_bytes + offset, part);
          left -= part;
          offset = 0;
        } else {
          offset -= std::min(offset, piece.size_bytes);
        }
      }
    }
    if (next.left_bytes == 0) body_complete();
    return true;
  }
  if (header.body_bytes > 0 && arch::crc32c(body.data(), body.size()) != header.body_crc)
    return fail_protocol({EPROTO, "a body's checksum is wrong: it was damaged in transfer"}), false;
  if (header.op == opcode::put && uploads_.contains(header.request_id))
    return fail_protocol({EPROTO, "a put has the number of another one whose bytes still come"}), false;
  auto one = std::make_shared<pending_request>();
  one->head = header;
  one->fields = std::move(rest->fields);
  one->began_ns = parse_ns_;
  if (header.deadline_us != store_protocol::kNoDeadline)
    one->deadline = clock::time_point(std::chrono::nanoseconds(parse_ns_)) + std::chrono::microseconds(header.deadline_us);
  ++in_flight_;
  one->promised_bytes = most_bytes_of(header);
  promised_bytes_ += one->promised_bytes;
  if (!one->fields.unpin.empty()) take_back(one->fields.unpin);
  if (draining_) {
    answer(one, {ESHUTDOWN, "the store is going down: try again when it is back"});
    return true;
  }
  dispatch(one, rest->key, body);
  return true;
}

void session::room_filled(std::size_t bytes) {
  auto& room = incoming_->room.front();
  incoming_->crc = arch::crc32c(room.data(), bytes, incoming_->crc);
  incoming_->left_bytes -= bytes;
  room = room.subspan(bytes);
  if (room.empty()) incoming_->room.erase(incoming_->room.begin());
  if (incoming_->receiver->writer) incoming_->receiver->writer->filled(bytes);
}

void session::fill_from_buffer() {
  while (incoming_ && incoming_->left_bytes > 0) {
    if (!more_room()) return;
    const auto have = buffered();
    if (have.empty()) return;
    auto part = static_cast<std::size_t>(std::min<std::uint64_t>(have.size(), incoming_->left_bytes));
    if (incoming_->room.empty()) {
      incoming_->left_bytes -= part;
    } else {
      part = std::min(part, incoming_->room.front().size());
      std::memcpy(incoming_->room.front().data(), have.data(), part);
      room_filled(part);
    }
    buffer_.take(part);
    if (incoming_->left_bytes == 0) return body_complete();
  }
}

void session::body_complete() {
  const incoming_body done = *std::move(incoming_);
  incoming_.reset();
  made_progress();
  if (!done.receiver) return;
  const bool last = (done.frame.flags & store_protocol::flag::more) == 0;
  if (done.receiver->refused) return;
  if (done.crc != done.frame.body_crc)
    return fail_protocol({EPROTO, "a piece of a value has a wrong checksum: it was damaged in transfer"});
  done.receiver->crc = arch::crc32c_combine(done.receiver->crc, done.crc, done.frame.body_bytes);
  done.receiver->have_bytes += done.frame.body_bytes;
  if (!last) return report_arrival(*done.receiver);
  if (done.receiver->have_bytes != done.receiver->request->head.value_bytes)
    return fail_protocol({EPROTO, "a value ended before its length"});
  const auto one = done.receiver;
  uploads_.erase(done.frame.request_id);
  upload_complete(one);
}

// A durable value is written to disk while it arrives.
void session::report_arrival(upload& one) {
  const bool whole = (one.request->head.flags & store_protocol::flag::patch) == 0;
  if (one.writer || !whole || one.request->head.value_bytes < kReportProgressFrom ||
      one.have_bytes < one.reported_bytes + kProgressStepBytes)
    return;
  one.reported_bytes = one.have_bytes;
  (void)parts_.engine.arrived(engine_session_, one.granted.id, one.have_bytes, put_options_of(one.request->fields, 0).level);
}

void session::fail_protocol(const failure& reason) {
  ++parts_.counters.protocol_errors;
  parts_.log.write(event_log::level::warn, "protocol_error",
                   {{"peer", wire_->other().origin}, {"principal", wire_->other().principal}, {"why", reason.message}});
  // Sent once, so that the other end can print it. After that the start of the next frame is unknown.
  store_protocol::tail fields;
  fields.text = reason.message;
  store_protocol::head head;
  head.op = opcode::hello;
  head.flags = store_protocol::flag::reply;
  head.status = reason.code;
  (void)store_protocol::encode(head, {}, fields, out_.frames());
  out_.flush(shared_from_this());
  broken_ = draining_ = true;
  give_up_uploads();
  end_watches({EPROTO, reason.message});
  finish_if_drained();
}

// The rest of their bytes cannot arrive, and an unanswered request would keep the connection open.
void session::give_up_uploads() {
  incoming_.reset();
  for (const auto& [id, one] : std::exchange(uploads_, {})) {
    if (std::exchange(one->refused, true)) continue;
    if (one->granted.id != 0) (void)parts_.engine.abort(engine_session_, one->granted.id);
    one->writer.reset();
    release_hold(std::exchange(one->held_bytes, 0));
    promised_bytes_ -= std::exchange(one->request->promised_bytes, 0);
    --in_flight_;
  }
}

// ---- Answers -----------------------------------------------------------------------------------------------------------

namespace {

// Expected answers are not logged as warnings: on connect, each client asks whether there is a cluster, and opens a
// pool before it creates one.
bool is_ordinary(opcode op, int code) {
  constexpr int kOrdinary[] = {0, ENOENT, EEXIST, ESTALE, EREMOTE, EAGAIN};
  if (std::find(std::begin(kOrdinary), std::end(kOrdinary), code) != std::end(kOrdinary)) return true;
  return ((op == opcode::cluster_map || op == opcode::device_link) && code == ENOTSUP) ||
         (op == opcode::pool_open && code == ENXIO) || (op == opcode::watch_next && code != EPROTO);
}

}  // namespace

void session::count_and_log(const pending_request& request, const status& outcome, std::uint64_t took_ns) {
  parts_.counters.operation(request.head.op, outcome.code(), took_ns);
  if (is_ordinary(request.head.op, outcome.code())) return;
  parts_.log.write(event_log::level::warn, "failed",
                   {{"op", store_protocol::name_of(request.head.op)},
                    {"principal", wire_->other().principal},
                    {"trace", std::to_string(request.head.trace_id)},
                    {"why", outcome.error().message}});
}

void session::answer(const request_ptr& request, const status& outcome, store_protocol::tail fields, std::string_view body,
                     std::uint64_t value_bytes, std::uint16_t flags) {
  --in_flight_;
  promised_bytes_ -= std::exchange(request->promised_bytes, 0);
  const std::uint64_t took_ns = monotonic_ns() - request->began_ns;
  count_and_log(*request, outcome, took_ns);
  if (closed_) return;
  store_protocol::head head = request->head;
  head.flags = static_cast<std::uint16_t>(flags | store_protocol::flag::reply);
  head.status = outcome.code();
  head.value_bytes = value_bytes;
  head.body_bytes = static_cast<std::uint32_t>(body.size());
  head.body_crc = arch::crc32c(body.data(), body.size());
  head.deadline_us = 0;
  if (!outcome) fields.text = outcome.error().message.substr(0, store_protocol::kMaxTailBytes / 2);
  if (outcome.code() == EREMOTE) fields.epoch = parts_.values.epoch();
  if (fields.result) fields.result->server_ns = took_ns;
  if (const auto fits = store_protocol::encode(head, {}, fields, out_.frames()); fits) {
    out_.frames().append(body);
  } else {  // a store of an earlier release may hold settings longer than a frame
    head.status = fits.code();
    head.flags = store_protocol::flag::reply;
    head.value_bytes = head.body_bytes = head.body_crc = 0;
    fields = {};
    fields.text = fits.error().message;
    (void)store_protocol::encode(head, {}, fields, out_.frames());
  }
  out_.flush_early();
  if (parsing_) return;
  out_.flush(shared_from_this());
  resume();
}

}  // namespace pl::store_server
