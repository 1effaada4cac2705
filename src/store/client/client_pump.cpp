// SPDX-License-Identifier: Apache-2.0
// Drives the connection: frames out, frames in, copies between the arena and the caller's memory.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "arch/crc32c.hpp"
#include "arch/mmio.hpp"
#include "base/text.hpp"
#include "store/client/client.hpp"
#include "store/client/interruption.hpp"

namespace pl::store_client {
namespace {

using store_protocol::opcode;
namespace flag = store_protocol::flag;

// After a deadline, because the store's own answer carries the reason
constexpr auto kGrace = std::chrono::milliseconds(500);
constexpr std::uint64_t kMaxUnpinBytes = 8 << 20;  // pins whose release may wait for the next message
constexpr std::size_t kMaxUnpins = 32;
constexpr int kPollsPerRound = 16;  // for an answer, 0.05 us each
constexpr int kMaxPatchAttempts = 1000;

std::uint32_t left_us(clock::time_point deadline) {
  if (deadline == clock::time_point::max()) return store_protocol::kNoDeadline;
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - clock::now()).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(left, 0, store_protocol::kNoDeadline - 1));
}

// The body that is sent with the head. A short value in host memory is sent from the caller's memory.
std::string_view body_of(const operation& one) {
  if (one.method != operation::kind::plain || one.head.op != opcode::put || one.mine.device) return one.body;
  return {reinterpret_cast<const char*>(one.mine.address), one.mine.bytes};
}

}  // namespace

// ---- Out -----------------------------------------------------------------------------------------------------------------

void client::submit(const operation_ptr& one) {
  one->head.request_id = next_request_++;
  one->phase = operation::stage::asked;
  one->sent_bytes = one->received_bytes = 0;
  one->arrived_bytes = one->reported_bytes = 0;
  one->token = 0;
  one->sum.reset();
  one->extents.clear();
  asked_[one->head.request_id] = one;
  if (!wire_) return;  // it is sent again after a reconnect
  if (!waits_its_turn(one)) send_request(one);
}

void client::send_request(const operation_ptr& one) {
  if (one->method == operation::kind::put_ucx || one->method == operation::kind::get_ucx) return submit_by_ucx(one);
  if (one->goes_by_device() && !submit_by_device(one)) return;
  auto op = one->head.op;
  if (one->method == operation::kind::put_shm) {
    op = opcode::alloc;
  } else if (one->method == operation::kind::get_shm) {
    op = opcode::lookup;
  }
  if ((one->method == operation::kind::put_shm || one->method == operation::kind::get_shm) && arena_ == nullptr)
    return finish(one, ENOTSUP, "the store's memory is not mapped any more: " + why_no_shm_);
  ask(*one, op, one->method == operation::kind::put_shm ? fields_for_room(*one) : one->fields);
  if (one->method == operation::kind::put_streamed && one->mine.bytes > 0) streaming_.push_back(one);
}

// The fields that let a store decide whether to refuse room for the value, or to wait for it. A quota is no reason to refuse
// if the condition is not met, or if the request was done before.
store_protocol::tail client::fields_for_room(const operation& put) {
  store_protocol::tail out;
  out.only = put.fields.only;
  out.level = put.fields.level;  // decides which part of the memory the value may take
  out.request_number = put.fields.request_number;
  return out;
}

void client::ask(operation& one, opcode op, const store_protocol::tail& fields) {
  store_protocol::head head = one.head;
  head.op = op;
  head.deadline_us = left_us(one.deadline);
  const std::string_view body = body_of(one);
  head.body_bytes = static_cast<std::uint32_t>(body.size());
  head.body_crc = arch::crc32c(body.data(), body.size());
  std::optional<store_protocol::tail> extra;
  if (!unpin_.empty()) {
    extra = fields;
    extra->unpin = std::exchange(unpin_, {});
    unpin_bytes_ = 0;
  }
  if (const auto done = store_protocol::encode(head, one.key, extra ? *extra : fields, out_); !done) {
    const auto found = asked_.find(one.head.request_id);
    const auto mine = found->second;
    asked_.erase(found);
    return finish(mine, done.code(), done.error().message);
  }
  out_ += body;
}

// Returns false if the socket takes no more now.
bool client::flush() {
  for (;;) {
    if (current_.empty()) {
      (void)send_held_back();
      if (!out_.empty()) {
        current_.head.swap(out_);
      } else if (!send_next_data()) {
        return true;
      }
    }
    const std::size_t head_bytes = current_.head.size();
    std::array<iovec, 2> pieces;
    std::size_t count = 0;
    if (current_.done < head_bytes) pieces[count++] = {current_.head.data() + current_.done, head_bytes - current_.done};
    const std::size_t body_done = current_.done > head_bytes ? current_.done - head_bytes : 0;
    if (body_done < current_.body_bytes)
      pieces[count++] = {const_cast<std::byte*>(current_.body) + body_done, current_.body_bytes - body_done};
    const auto sent = wire_->write({pieces.data(), count});
    if (!sent) {
      lose_connection(sent.error());
      return true;
    }
    if (*sent == 0) return false;
    current_.done += *sent;
    if (current_.done == head_bytes + current_.body_bytes) current_.clear();
  }
}

// Sends the next data frame of one of the puts, round robin. Returns false if there is none.
bool client::send_next_data() {
  if (streaming_.empty()) return false;
  const auto one = streaming_.front();
  streaming_.pop_front();
  store_protocol::head head;
  head.op = opcode::data;
  head.request_id = one->head.request_id;
  head.pool_id = one->head.pool_id;
  head.offset = one->sent_bytes;
  // A put that ended early (refused, late) still sends the rest of its frames; otherwise the store would wait for them.
  const std::uint64_t left = one->done() ? 0 : one->mine.bytes - one->sent_bytes;
  const auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, store_protocol::kDataBodyBytes));
  const std::byte* body = reinterpret_cast<const std::byte*>(one->mine.address + one->sent_bytes);
  if (one->mine.device && bytes > 0) {
    one->staging.resize(store_protocol::kDataBodyBytes);
    const auto done = copy_out(one->mine, one->sent_bytes, one->staging.data(), bytes, one->order);
    if (!done) {
      finish(one, done.code(), done.error().message);
      streaming_.push_front(one);
      return send_next_data();
    }
    body = one->staging.data();
  }
  head.body_bytes = bytes;
  head.body_crc = arch::crc32c(body, bytes);
  if (bytes < left) head.flags |= flag::more;
  one->sent_bytes += bytes;
  (void)store_protocol::encode_raw(head, {}, {}, current_.head);  // fails only for long keys
  current_.body = body;
  current_.body_bytes = bytes;
  current_.owner = one;
  if (bytes < left) streaming_.push_back(one);
  return true;
}

// Copies the unsent rest of a frame, because the caller gets its memory back when the operation ends. At most one
// frame, and only of a refused or late put.
void client::keep_rest_of_frame(operation& one) {
  if (current_.owner.get() != &one || one.mine.device) return;
  const std::size_t head_bytes = current_.head.size();
  const std::size_t body_done = current_.done > head_bytes ? current_.done - head_bytes : 0;
  one.staging.assign(current_.body + body_done, current_.body + current_.body_bytes);
  current_.body = one.staging.data();
  current_.body_bytes -= body_done;
  current_.done -= body_done;
}

void client::let_go(std::uint64_t pin, std::uint64_t bytes) {
  if (pin == 0 || !wire_) return;
  unpin_.push_back(pin);
  unpin_bytes_ += bytes;
  if (unpin_.size() < kMaxUnpins && unpin_bytes_ < kMaxUnpinBytes) return;
  operation note;  // answered, but not waited for
  note.head.op = opcode::unpin;
  ask(note, opcode::unpin, {});
}

// ---- In ------------------------------------------------------------------------------------------------------------------

bool client::read_some() {
  if (!wire_) return false;
  void* destination = input_.data() + input_end_;
  std::size_t room = input_.size() - input_end_;
  const bool direct = receiving_ && input_begin_ == input_end_;
  if (direct) {
    destination = room_for_data(room);
  } else if (input_begin_ > 0) {
    std::memmove(input_.data(), input_.data() + input_begin_, input_end_ - input_begin_);
    input_end_ -= input_begin_;
    input_begin_ = 0;
    destination = input_.data() + input_end_;
    room = input_.size() - input_end_;
  }
  // Reads only the head, so that the bytes after it go straight to their destination.
  if (!direct && data_next_ && input_end_ == 0) room = store_protocol::kHeadBytes;
  const auto got = wire_->read(destination, room);
  if (!got) {
    lose_connection(got.error());
    return true;
  }
  if (*got == 0) return false;
  if (direct) data_came(static_cast<std::byte*>(destination), *got);
  else input_end_ += *got;
  while (wire_ && parse_one()) {}
  return true;
}

// Destination of the next bytes of the current data frame; sets `room` to how many fit.
void* client::room_for_data(std::size_t& room) {
  auto& now = *receiving_;
  const std::size_t left = now.header.body_bytes - now.done;
  if (!now.receiver || now.receiver->done()) {
    input_begin_ = input_end_ = 0;
    room = std::min(left, input_.size());
    return input_.data();
  }
  room = left;
  if (now.receiver->mine.device) return now.receiver->staging.data() + now.done;
  return reinterpret_cast<std::byte*>(now.receiver->mine.address + now.receiver->received_bytes + now.done);
}

void client::data_came(const std::byte* data, std::size_t bytes) {
  receiving_->crc = arch::crc32c(data, bytes, receiving_->crc);
  receiving_->done += bytes;
  if (receiving_->done == receiving_->header.body_bytes) data_complete();
}

void client::data_complete() {
  const receiving done = *std::exchange(receiving_, std::nullopt);
  const auto& one = done.receiver;
  const bool last = (done.header.flags & flag::more) == 0;
  data_next_ = !last;
  if (last) asked_.erase(done.header.request_id);
  if (!one || one->done()) return;
  if (done.crc != done.header.body_crc)
    return lose_connection({EPROTO, "a piece of a value arrived with a wrong checksum: it was damaged in transfer"});
  if (one->mine.device && done.done > 0) {
    const copy::transfer transfer{copy::direction::to_device, one->mine.address + one->received_bytes,
                                  copy::address_of(one->staging.data()), done.done};
    if (const auto copied = options_.copies->copy(transfer, *one->mine.device); !copied)
      return finish(one, copied.code(), copied.error().message);
  }
  one->received_bytes += done.done;
  one->got.moved_bytes = one->received_bytes;
  if (last) finish(one, 0);
}

// Returns false if more bytes are needed.
bool client::parse_one() {
  const std::size_t have = input_end_ - input_begin_;
  const char* cursor = input_.data() + input_begin_;
  if (receiving_) {
    if (have == 0) return false;
    std::size_t room = 0;
    const auto& now = *receiving_;
    const std::size_t part = std::min(have, now.header.body_bytes - now.done);
    if (now.receiver && !now.receiver->done()) std::memcpy(room_for_data(room), cursor, part);
    input_begin_ += part;
    data_came(reinterpret_cast<const std::byte*>(cursor), part);
    return true;
  }
  if (have < store_protocol::kHeadBytes) return false;
  const auto bytes = std::as_bytes(std::span(cursor, have));
  const auto header = store_protocol::decode_head(bytes.first<store_protocol::kHeadBytes>());
  if (!header) return lose_connection(header.error()), false;
  const std::size_t front = store_protocol::kHeadBytes + header->key_bytes + header->tail_bytes;
  const std::size_t whole = front + (header->op == opcode::data ? 0 : header->body_bytes);
  if (have < whole) {
    if (whole > input_.size()) input_.resize(whole);
    return false;
  }
  auto rest = store_protocol::decode_rest(*header, bytes.first(front));
  if (!rest) return lose_connection(rest.error()), false;
  input_begin_ += whole;
  if (header->op == opcode::data) {
    take_data(*header);
    return true;
  }
  const std::string_view body(cursor + front, header->body_bytes);
  if (arch::crc32c(body.data(), body.size()) != header->body_crc)
    return lose_connection({EPROTO, "an answer arrived with a wrong checksum: it was damaged in transfer"}), false;
  take_answer(*header, std::move(rest->fields), body);
  return true;
}

void client::take_data(const store_protocol::head& header) {
  auto& now = receiving_.emplace(receiving{});
  now.header = header;
  if (const auto found = asked_.find(header.request_id); found != asked_.end()) now.receiver = found->second;
  if (now.receiver && !now.receiver->done()) {
    auto& one = *now.receiver;
    if (header.offset != one.received_bytes || header.body_bytes > one.mine.bytes - one.received_bytes)
      return lose_connection({EPROTO, "a piece of a value came that does not continue the one before"});
    if (one.mine.device) one.staging.resize(store_protocol::kMaxBodyBytes);
  }
  if (header.body_bytes == 0) data_complete();
}

void client::take_answer(const store_protocol::head& header, store_protocol::tail fields, std::string_view body) {
  if (header.op == opcode::hello && header.status != 0)  // the server's reason for closing
    return lose_connection({header.status, fields.text.value_or("the store ended the connection")});
  const auto found = asked_.find(header.request_id);
  if (found == asked_.end()) return;
  const auto one = found->second;
  const bool data_follow = (header.flags & flag::streamed) != 0 && header.status == 0;
  if (one->done()) {  // too late
    if (!data_follow) asked_.erase(found);
    if (header.op == opcode::lookup && fields.token) let_go(*fields.token, header.value_bytes);
    if (header.op == opcode::alloc && fields.token) {
      operation note;
      store_protocol::tail token;
      token.token = fields.token;
      ask(note, opcode::abort, token);
    }
    return;
  }
  take_answer_to(one, header, std::move(fields), body, data_follow);
}

void client::take_answer_to(const operation_ptr& one, const store_protocol::head& header, store_protocol::tail fields,
                            std::string_view body, bool data_follow) {
  auto& got = one->got;
  // The server will close the connection; the request is repeated when the store is back.
  if (header.status == ESHUTDOWN && one->may_repeat && options_.reconnect) return;
  if (header.status != 0) {
    // Another client changed the value while a part of it was put, so the rest is taken from the new value.
    const bool changed = header.status == ESTALE || header.status == EEXIST || header.status == ENOENT;
    if (one->is_patch() && !one->fields.only && changed && ++one->attempts < kMaxPatchAttempts &&
        clock::now() < one->deadline) {
      asked_.erase(header.request_id);
      // The store does not remember a request that changed nothing, so this client draws a new number. A router's
      // request keeps its own number.
      if (one->fields.request_number->client == client_id_) one->fields.request_number->number = next_sequence_++;
      return submit(one);
    }
    const bool by_memory = one->method == operation::kind::put_shm || one->method == operation::kind::get_shm;
    const bool uses_ucx = one->method == operation::kind::put_ucx || one->method == operation::kind::get_ucx;
    const bool is_unsupported = header.status == EFBIG || header.status == ENOTSUP;
    if (one->handed.has_slot && is_unsupported) {
      asked_.erase(header.request_id);
      if (options_.require == store_protocol::path::none) return device_refused(one);
    }
    if ((by_memory && is_unsupported) || (uses_ucx && (is_unsupported || header.status == ECONNABORTED))) {
      asked_.erase(header.request_id);
      return go_by_socket(one, fields.text.value_or(errno_text(header.status)));
    }
    if (header.status == ENOSPC && try_again_alone(one)) return;
    if (one->method != operation::kind::put_streamed || one->sent_bytes == one->mine.bytes) asked_.erase(header.request_id);
    std::string reason = fields.text.value_or(errno_text(header.status));
    got.fields = std::move(fields);
    return finish(one, header.status, std::move(reason));
  }
  if (fields.result) got.result = *fields.result;
  pace_.ended(*one);
  leave_device(*one, true);
  switch (one->method) {
    case operation::kind::put_device:
      got.moved_bytes = one->mine.bytes;
      break;
    case operation::kind::get_device:
      got.moved_bytes = header.value_bytes;
      break;
    case operation::kind::put_shm:
      if (header.op != opcode::alloc) break;
      [[fallthrough]];
    case operation::kind::get_shm:
      one->token = fields.token.value_or(0);
      one->extents = std::move(fields.extents);
      one->reports_arrival = may_report_arrival(*one, fields.level);
      one->phase = operation::stage::to_copy;
      copies_.push_back(one);
      return;
    case operation::kind::put_ucx:
      if (header.op == opcode::alloc) return ucx_answered(one, header, fields);
      got.moved_bytes = one->mine.bytes;
      break;
    case operation::kind::get_ucx:
      if ((header.flags & flag::ucx) != 0) return ucx_answered(one, header, fields);
      stop_ucx_transfer(*one);
      one->method = operation::kind::get_streamed;  // the store's memory does not hold the whole value
      if (options_.require != store_protocol::path::none && header.value_bytes > 0)
        finish(one, ENOTSUP,
               format("path %s was required: the value is not completely in memory", name_of(options_.require)));
      [[fallthrough]];
    case operation::kind::get_streamed:
      data_next_ = data_follow;
      if (data_follow) return;
      if (body.size() > one->mine.bytes) return lose_connection({EPROTO, "more of a value came than was asked for"});
      if (!body.empty()) {
        const auto copied = copy_in(one->mine, body);
        if (!copied) {
          asked_.erase(header.request_id);
          return finish(one, copied.code(), copied.error().message);
        }
      }
      got.moved_bytes = body.size();
      break;
    case operation::kind::put_streamed:
      got.moved_bytes = one->mine.bytes;
      break;
    case operation::kind::batch_device:
    case operation::kind::plain:
      got.moved_bytes = body_of(*one).size();
      got.body = body;
      break;
  }
  if (one->method == operation::kind::put_shm) got.moved_bytes = one->mine.bytes;
  got.pool_id = header.pool_id;
  got.more = (header.flags & flag::more) != 0;
  got.fields = std::move(fields);
  asked_.erase(header.request_id);
  finish(one, 0);
}

// Repeats the request through the socket, because the store's memory does not hold the whole value or may not be used
// for this pool. Fails if the caller required mapped memory.
void client::go_by_socket(const operation_ptr& one, const std::string& reason) {
  stop_ucx_transfer(*one);
  end_turn(*one);
  if (options_.require != store_protocol::path::none)
    return finish(one, ENOTSUP, format("path %s was required: %s", name_of(options_.require), reason.c_str()));
  if (one->method == operation::kind::get_shm && one->order.has)
    return finish(one, ENOTSUP, "a get in stream order reads the store's memory: " + reason);
  if (one->method == operation::kind::put_shm || one->method == operation::kind::put_ucx) {
    one->method = operation::kind::put_streamed;
    one->head.flags |= flag::streamed;
  } else {
    one->method = operation::kind::get_streamed;
  }
  submit(one);
}

// ---- Time ----------------------------------------------------------------------------------------------------------------

clock::time_point client::next_deadline() const {
  auto first = clock::time_point::max();
  for (const auto& [id, one] : asked_)
    if (!one->done()) first = std::min(first, one->deadline);
  return first == clock::time_point::max() ? first : first + kGrace;
}

void client::expire() {
  const auto now = clock::now();
  if (now < next_check_) return;
  next_check_ = now + std::chrono::milliseconds(5);  // a check costs time for each pending operation
  const auto asked = asked_;
  for (const auto& [id, one] : asked) {
    if (one->done() || one->deadline == clock::time_point::max() || now < one->deadline + (wire_ ? kGrace : kGrace * 0))
      continue;
    wait_for_copies(*one);
    if (one->method == operation::kind::put_ucx) give_grant_back(*one);
    std::string reason =
        wire_ ? "the store did not answer in time" : "the store was not reached in time: " + lost_because_.message;
    if (one->is_interrupted) finish(one, EINTR, kInterrupted);
    else finish(one, ETIMEDOUT, std::move(reason));
  }
}

// Returns true if something happened.
bool client::pump(lock_t& hold, clock::time_point give_up_at, bool may_sleep) {
  if (!wire_) return connect_again(hold, give_up_at);
  bool moved = run_copies(hold);
  moved = drive_ucx() || moved;
  if (wire_) flush();
  moved = read_some() || moved;
  if (wire_ && (!out_.empty() || send_held_back())) flush();
  expire();
  if (moved || !wire_) return true;
  // Armed before the last poll, so that bytes that arrive from now on end the sleep.
  const bool uses_ucx = ucx_stream_ != nullptr && !ucx_operations_.empty();
  const bool to_write = !current_.empty() || !out_.empty();
  std::optional<short> events;
  if (may_sleep && copies_.empty() && (!uses_ucx || ucx_stream_->arm())) events = wire_->arm(to_write);
  if (!events) {
    // A round of this function reads the clock and takes locks, so several polls of the ring cost less than one round.
    for (int i = 0; i < kPollsPerRound && copies_.empty() && !uses_ucx && !wire_->may_have_bytes(); ++i) arch::relax();
    hold.unlock();
    hold.lock();
    return false;
  }
  const auto end = std::min({give_up_at, next_deadline(), clock::now() + kMaxSleep});
  const auto left = std::max(end - clock::now(), clock::duration(0));
  const timespec patience{std::chrono::duration_cast<std::chrono::seconds>(left).count(),
                          (left % std::chrono::seconds(1)).count()};
  pollfd all[3] = {{wire_->fd(), *events, 0}, {wake_fd_, POLLIN, 0}, {uses_ucx ? ucx_stream_->fd() : -1, POLLIN, 0}};
  hold.unlock();
  ppoll(all, 3, &patience, nullptr);
  eventfd_t ignored = 0;
  (void)eventfd_read(wake_fd_, &ignored);
  hold.lock();
  return false;
}

}  // namespace pl::store_client
