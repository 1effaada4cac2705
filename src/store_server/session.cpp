// SPDX-License-Identifier: Apache-2.0
#include "session.hpp"

#include <algorithm>
#include <asio/post.hpp>
#include <cstring>

#include "clock.hpp"
#include "crc32c.hpp"
#include "text.hpp"

namespace pl::store_server {
namespace {

using store_wire::opcode;
constexpr std::size_t kBufferBytes = 256 << 10;
constexpr std::size_t kMostWaitingBytes = 16u << 20;  // answers that the client has not taken yet
constexpr std::size_t kMostDownloads = 256;
constexpr std::uint64_t kTellFrom = 16u << 20, kTellBytes = 4u << 20;  // as clients do that copy it themselves
constexpr auto kRoomPause = std::chrono::milliseconds(2);              // between looks for room
constexpr auto kWatchPause = std::chrono::seconds(1);

}  // namespace

session::session(asio::io_context& home, std::unique_ptr<transport> wire, server_parts& parts)
    : home_(home),
      wire_(std::move(wire)),
      parts_(parts),
      out_(
          *wire_, [this](std::error_code error) { close(error.message().c_str()); }, [this] { resume(); }),
      watch_timer_(home),
      room_timer_(home),
      buffer_(kBufferBytes),
      opened_ns_(monotonic_ns()) {
  ++parts_.counters.connections;
}

session::~session() {
  out_.drop();
  --parts_.counters.connections;
  for (const auto& [id, one] : uploads_)
    if (!one->refused) (void)parts_.engine.abort(engine_session_, one->granted.id);
  if (engine_session_ != 0) parts_.keeper.leave(engine_session_, mapped_ != mapping::none ? wire_->other().pid : 0);
}

void session::start() {
  watch();
  wire_->start([me = shared_from_this()](std::error_code error) {
    if (error) {
      ++me->parts_.counters.refused;
      me->parts_.log.write(event_log::level::warn, "refused",
                           {{"peer", me->wire_->other().where}, {"why", error.message()}});
      return me->close("handshake");
    }
    me->engine_session_ = me->parts_.engine.open_session();
    me->read_more();
  });
}

// Once a second: clients that do not greet, and clients that take nothing.
void session::watch() {
  watch_timer_.expires_after(kWatchPause);
  watch_timer_.async_wait([weak = weak_from_this()](std::error_code error) {
    const auto me = weak.lock();
    if (error || !me || me->closed_) return;
    const std::uint64_t now = monotonic_ns(), second = 1'000'000'000;
    if (!me->greeted_ && now - me->opened_ns_ > me->parts_.config.hello_timeout_s * second) return me->close("no greeting");
    const std::uint64_t since = me->out_.writing_since_ns();
    if (since != 0 && now - since > me->parts_.config.stall_timeout_s * second) {
      ++me->parts_.counters.stalled;
      return me->close("takes nothing");
    }
    me->watch();
  });
}

void session::close(const char* why) {
  if (closed_) return;
  closed_ = true;
  parts_.log.write(event_log::level::debug, "closed",
                   {{"peer", wire_->other().where}, {"principal", wire_->other().principal}, {"why", why}});
  watch_timer_.cancel();
  room_timer_.cancel();
  leave_lane();
  wire_->close();
  if (out_.writing_since_ns() == 0) out_.drop();
  parts_.ended(this);
}

void session::drain() {
  asio::post(home_, [me = shared_from_this()] {
    me->draining_ = true;
    me->finish_if_drained();
  });
}

void session::finish_if_drained() {
  if (draining_ && under_way_ == 0 && out_.idle()) close("drained");
}

// ---- Reading -----------------------------------------------------------------------------------------------------------

bool session::may_parse() const {
  return !closed_ && !broken_ && !waiting_for_room_ && under_way_ < parts_.config.max_requests &&
         out_.waiting_bytes() < kMostWaitingBytes && out_.downloads() < kMostDownloads;
}

void session::resume() {
  if (!parsing_ && !closed_ && may_parse()) parse();
  finish_if_drained();
}

void session::read_more() {
  if (reading_ || closed_ || !may_parse()) return;
  reading_ = true;
  asio::mutable_buffer into;
  if (filling_ && !filling_->room.empty()) {
    into = asio::buffer(filling_->room.front().data(), filling_->room.front().size());
  } else {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    // Of a value on its way the next frame's head alone, so that the bytes behind it are read to where they shall lie.
    const bool head_alone = !uploads_.empty() && end_ == 0;
    into = asio::buffer(buffer_.data() + end_, head_alone ? store_wire::kHeadBytes : buffer_.size() - end_);
  }
  wire_->read_some(into,
                   [me = shared_from_this()](std::error_code error, std::size_t bytes) { me->received(error, bytes); });
}

void session::received(std::error_code error, std::size_t bytes) {
  reading_ = false;
  if (closed_) return;
  if (error) return close(error.message().c_str());
  if (filling_ && !filling_->room.empty()) {
    room_filled(bytes);
    if (filling_->left_bytes == 0) body_complete();
  } else {
    end_ += bytes;
  }
  parse();
}

void session::parse() {
  parsing_ = true;
  parse_ns_ = monotonic_ns();
  while (may_parse() && parse_one()) {}
  parsing_ = false;
  if (closed_) return;
  out_.flush(shared_from_this());
  read_more();
}

// False: more bytes are needed.
bool session::parse_one() {
  if (filling_) {
    fill_from_buffer();
    return !filling_;
  }
  const auto have = buffered();
  if (have.size() < store_wire::kHeadBytes) return false;
  const auto bytes = std::as_bytes(std::span(have));
  const auto what = store_wire::decode_head(bytes.first<store_wire::kHeadBytes>());
  if (!what) return fail_protocol(what.error()), false;
  const std::size_t front = store_wire::kHeadBytes + what->key_bytes + what->tail_bytes;
  const std::size_t whole = front + (what->op == opcode::data ? 0 : what->body_bytes);
  if (have.size() < whole) {
    if (whole > buffer_.size()) buffer_.resize(whole);
    return false;
  }
  begin_ += whole;
  return take_frame(bytes.first(front), *what, have.substr(front, whole - front));
}

bool session::take_frame(std::span<const std::byte> whole, const store_wire::head& what, std::string_view body) {
  auto rest = store_wire::decode_rest(what, whole);
  if (!rest) return fail_protocol(rest.error()), false;
  if ((what.flags & store_wire::flag::reply) != 0) return fail_protocol({EPROTO, "an answer came from a client"}), false;
  if (what.op == opcode::data) {
    auto& next = filling_.emplace(filling{});
    next.frame = what;
    next.left_bytes = what.body_bytes;
    if (const auto found = uploads_.find(what.request_id); found != uploads_.end()) next.into = found->second;
    const bool wanted = next.into && !next.into->refused;
    if (wanted) {
      if (what.offset != next.into->have_bytes || what.body_bytes > next.into->what->head.value_bytes - what.offset)
        return fail_protocol({EPROTO, "a piece of a value came that does not continue the one before"}), false;
      std::uint64_t at = next.into->patch_at + what.offset, left = what.body_bytes;
      for (const auto& piece : next.into->granted.segments) {
        if (at < piece.size_bytes && left > 0) {
          const std::uint64_t part = std::min(left, piece.size_bytes - at);
          next.room.emplace_back(parts_.engine.arena().base + piece.offset_bytes + at, part);
          left -= part;
          at = 0;
        } else {
          at -= std::min(at, piece.size_bytes);
        }
      }
    }
    if (next.left_bytes == 0) body_complete();
    return true;
  }
  if (what.body_bytes > 0 && arch::crc32c(body.data(), body.size()) != what.body_crc)
    return fail_protocol({EPROTO, "a body's checksum is wrong: it was damaged on its way"}), false;
  if (!greeted_ && what.op != opcode::hello)
    return fail_protocol({EPROTO, "the first frame of a connection is hello"}), false;
  auto one = std::make_shared<request>();
  one->head = what;
  one->fields = std::move(rest->fields);
  one->began_ns = parse_ns_;
  if (what.deadline_us != store_wire::kNoDeadline)
    one->deadline = clock::time_point(std::chrono::nanoseconds(parse_ns_)) + std::chrono::microseconds(what.deadline_us);
  ++under_way_;
  if (!one->fields.unpin.empty()) let_go(one->fields.unpin);
  if (draining_) {
    answer(one, {ESHUTDOWN, "the store is going down: try again when it is back"});
    return true;
  }
  dispatch(one, rest->key, body);
  return true;
}

void session::room_filled(std::size_t bytes) {
  auto& room = filling_->room.front();
  filling_->crc = arch::crc32c(room.data(), bytes, filling_->crc);
  filling_->left_bytes -= bytes;
  room = room.subspan(bytes);
  if (room.empty()) filling_->room.erase(filling_->room.begin());
  if (filling_->into->writer) filling_->into->writer->filled(bytes);
}

void session::fill_from_buffer() {
  while (filling_ && filling_->left_bytes > 0) {
    if (!more_room()) return;
    const auto have = buffered();
    if (have.empty()) return;
    auto part = static_cast<std::size_t>(std::min<std::uint64_t>(have.size(), filling_->left_bytes));
    if (filling_->room.empty()) {
      filling_->left_bytes -= part;
    } else {
      part = std::min(part, filling_->room.front().size());
      std::memcpy(filling_->room.front().data(), have.data(), part);
      room_filled(part);
    }
    begin_ += part;
    if (filling_->left_bytes == 0) return body_complete();
  }
}

void session::body_complete() {
  const filling done = *std::move(filling_);
  filling_.reset();
  if (!done.into) return;
  const bool last = (done.frame.flags & store_wire::flag::more) == 0;
  if (done.into->refused) return;
  if (done.crc != done.frame.body_crc)
    return fail_protocol({EPROTO, "a piece of a value has a wrong checksum: it was damaged on its way"});
  done.into->crc = arch::crc32c_combine(done.into->crc, done.crc, done.frame.body_bytes);
  done.into->have_bytes += done.frame.body_bytes;
  if (!last) return tell_arrival(*done.into);
  if (done.into->have_bytes != done.into->what->head.value_bytes)
    return fail_protocol({EPROTO, "a value ended before its length"});
  const auto one = done.into;
  uploads_.erase(done.frame.request_id);
  upload_complete(one);
}

// A durable value goes to disk while it comes.
void session::tell_arrival(upload& one) {
  const bool whole = (one.what->head.flags & store_wire::flag::patch) == 0;
  if (one.writer || !whole || one.what->head.value_bytes < kTellFrom || one.have_bytes < one.told_bytes + kTellBytes) return;
  one.told_bytes = one.have_bytes;
  (void)parts_.engine.arrived(engine_session_, one.granted.id, one.have_bytes, put_options_of(one.what->fields, 0).level);
}

void session::fail_protocol(const failure& why) {
  ++parts_.counters.protocol_errors;
  parts_.log.write(event_log::level::warn, "protocol_error",
                   {{"peer", wire_->other().where}, {"principal", wire_->other().principal}, {"why", why.message}});
  // Said once, so that the other end can print it; then there is no telling where the next frame starts.
  store_wire::tail fields;
  fields.text = why.message;
  store_wire::head head;
  head.op = opcode::hello;
  head.flags = store_wire::flag::reply;
  head.status = why.code;
  (void)store_wire::encode(head, {}, fields, out_.frames());
  out_.flush(shared_from_this());
  broken_ = draining_ = true;
  finish_if_drained();
}

// ---- Answers -----------------------------------------------------------------------------------------------------------

void session::count_and_log(const request& what, const status& outcome, std::uint64_t took_ns) {
  parts_.counters.operation(what.head.op, outcome.code(), took_ns);
  if (outcome.ok() || outcome.code() == ENOENT || outcome.code() == EEXIST || outcome.code() == ESTALE ||
      outcome.code() == EREMOTE || outcome.code() == EAGAIN)
    return;
  parts_.log.write(event_log::level::warn, "failed",
                   {{"op", store_wire::name_of(what.head.op)},
                    {"principal", wire_->other().principal},
                    {"trace", std::to_string(what.head.trace_id)},
                    {"why", outcome.error().message}});
}

void session::answer(const request_ptr& to, const status& outcome, store_wire::tail fields, std::string_view body,
                     std::uint64_t value_bytes, std::uint16_t flags) {
  --under_way_;
  const std::uint64_t took_ns = monotonic_ns() - to->began_ns;
  count_and_log(*to, outcome, took_ns);
  if (closed_) return;
  store_wire::head head = to->head;
  head.flags = static_cast<std::uint16_t>(flags | store_wire::flag::reply);
  head.status = outcome.code();
  head.value_bytes = value_bytes;
  head.body_bytes = static_cast<std::uint32_t>(body.size());
  head.body_crc = arch::crc32c(body.data(), body.size());
  head.deadline_us = 0;
  if (!outcome) fields.text = outcome.error().message.substr(0, store_wire::kMaxTailBytes / 2);
  if (outcome.code() == EREMOTE) fields.epoch = parts_.values.epoch();
  if (fields.result) fields.result->server_ns = took_ns;
  (void)store_wire::encode(head, {}, fields, out_.frames());  // no key, and the texts are bounded
  out_.frames().append(body);
  out_.flush_early();
  if (parsing_) return;
  out_.flush(shared_from_this());
  resume();
}

bool session::may_wait(const request& what) const { return !closed_ && clock::now() + kRoomPause < what.deadline; }

void session::wait_for_room(std::function<void()> again) {
  // Until then nothing else of this connection is taken: what comes behind would need room as well.
  ++parts_.counters.waits_for_room;
  waiting_for_room_ = true;
  room_timer_.expires_after(kRoomPause);
  room_timer_.async_wait([me = shared_from_this(), again = std::move(again)](std::error_code) {
    me->waiting_for_room_ = false;
    again();
    me->resume();
  });
}

void session::until_room(const request_ptr& what, std::function<status()> step, std::function<void(const status&)> then) {
  const status now = step();
  if (now.code() != ENOSPC || !may_wait(*what)) return then(now);
  wait_for_room(
      [me = shared_from_this(), what, step = std::move(step), then = std::move(then)] { me->until_room(what, step, then); });
}

}  // namespace pl::store_server
