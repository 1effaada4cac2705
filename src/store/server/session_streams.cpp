// SPDX-License-Identifier: Apache-2.0
// Values that do not fit into memory: they are moved between socket and disk one window at a time.
//
//   put   data frames ─▶ window A │ window B ─▶ extents ... the last one ─▶ sync ─▶ commit ─▶ answer
//   get   answer, then  extents ─▶ window A │ window B ─▶ data frames
//
// While the disk has both windows of a put, its connection is not read, so the client's writes wait. This is the
// backpressure.
#include <algorithm>
#include <asio/post.hpp>

#include "base/text.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {
namespace {

namespace flag = store_protocol::flag;

}  // namespace

std::uint64_t session::held_bytes(std::uint64_t value_bytes) const {
  return value_bytes > parts_.engine.max_in_memory_bytes() ? 2 * store::kWindowBytes : value_bytes;
}

// ---- Puts --------------------------------------------------------------------------------------------------------------

void session::put_in_windows(const request_ptr& request, std::string_view key) {
  if (const status may = may_begin(held_bytes(request->head.value_bytes)); !may) return answer(request, may.error());
  auto one = std::make_shared<upload>();
  one->request = request;
  one->key = key;
  uploads_[request->head.request_id] = one;
  one->held_bytes = held_bytes(request->head.value_bytes);
  hold(one->held_bytes);
  open_writer(one);
}

void session::open_writer(const std::shared_ptr<upload>& one) {
  waiting_for_room_ = true;  // its frames follow
  const store::owner_id owner = owner_of(one->request->fields);
  parts_.blocking.post(fair_workers::kind::brief, wire_->other().principal, this, [me = shared_from_this(), one, owner] {
    const auto& head = one->request->head;
    auto made =
        me->parts_.engine.open_writer(head.pool_id, one->key, head.value_bytes, owner, request_of(one->request->fields));
    me->run_on_home_thread([me, one, made = std::move(made)] {
      me->waiting_for_room_ = false;
      // Others may wait for the writers that this connection occupies until its next frames arrive.
      const bool has_writer = std::any_of(me->uploads_.begin(), me->uploads_.end(),
                                          [&](const auto& other) { return other.second->writer != nullptr; });
      if (made.code() == ENOSPC && me->may_wait(*one->request) && (!has_writer || !me->has_waited(*one->request)))
        return me->wait_for_room([me, one] { me->open_writer(one); });
      if (made) one->writer = *made;
      else me->refuse_upload(one, made.error());
      me->resume();
    });
  });
}

void session::refuse_upload(const std::shared_ptr<upload>& one, const failure& reason) {
  one->refused = true;  // the rest of its frames is dropped
  one->writer.reset();
  uploads_.erase(one->request->head.request_id);
  release_hold(std::exchange(one->held_bytes, 0));
  answer(one->request, reason);
}

bool session::more_room() {
  if (!incoming_->room.empty() || !incoming_->receiver || !incoming_->receiver->writer) return true;
  const auto one = incoming_->receiver;
  for (;;) {
    const auto room = one->writer->room();
    if (!room.empty()) {
      incoming_->room.push_back(room.first(std::min<std::uint64_t>(room.size(), incoming_->left_bytes)));
      return true;
    }
    if (const auto bad = one->writer->failed(); !bad) {
      refuse_upload(one, bad.error());
      return true;
    }
    waiting_for_room_ = true;
    if (one->writer->when_room([weak = weak_from_this()] {
          const auto me = weak.lock();
          if (!me) return;
          asio::post(me->home_, [me] {
            me->waiting_for_room_ = false;
            me->resume();
          });
        }))
      return false;
    waiting_for_room_ = false;
  }
}

// ---- Gets --------------------------------------------------------------------------------------------------------------

void session::send_in_windows(const request_ptr& request, const store::pinned_value& value) {
  if (request->head.offset > value.info.length_bytes)
    return answer(request, {EINVAL, format("offset %llu is beyond the value's end (%llu bytes)",
                                           static_cast<unsigned long long>(request->head.offset),
                                           static_cast<unsigned long long>(value.info.length_bytes))});
  const auto way = wire_->other().way;
  const bool warm = (request->head.flags & flag::warm) != 0;
  const std::uint64_t bytes = warm ? 0 : value.reader->range_bytes();
  store_protocol::tail fields;
  fields.result = outcome_of(value.info);
  parts_.counters.bytes(way, false, bytes);
  answer(request, {}, std::move(fields), {}, bytes, bytes > 0 ? flag::streamed : std::uint16_t{0});
  if (closed_ || bytes == 0) return;
  auto one = std::make_shared<outgoing>();
  one->request = request;
  one->reader = value.reader;
  one->unread_bytes = one->unsent_bytes = bytes;
  ++in_flight_;  // a draining server lets it finish
  next_window(one);
}

// Reads the next window, if there is one, while the previous one is being sent.
void session::next_window(const outgoing_ptr& one) {
  if (one->reading || one->ready || one->unread_bytes == 0) return;
  one->reading = true;
  one->reader->next_async([me = shared_from_this(), one](result<std::span<const std::byte>> got) {
    asio::post(me->home_, [me, one, got = std::move(got)] {
      one->reading = false;
      if (got) one->unread_bytes -= got->size();
      one->ready = got;
      me->send_window(one);
    });
  });
}

void session::send_window(const outgoing_ptr& one) {
  if (one->ended || one->sending) return;
  const bool sent = one->unsent_bytes == 0;
  if (closed_ || sent || (one->ready && !*one->ready)) {
    one->ended = true;
    if (!closed_ && !sent) return answer(one->request, one->ready->error());  // replaces the rest
    --in_flight_;
    return resume();
  }
  if (!one->ready) return;
  const auto window = **std::exchange(one->ready, std::nullopt);
  download out;
  out.frame.request_id = one->request->head.request_id;
  out.frame.pool_id = one->request->head.pool_id;
  out.frame.offset = one->reader->range_bytes() - one->unsent_bytes;
  out.pieces = {window};
  out.left_bytes = window.size();
  one->unsent_bytes -= window.size();
  out.more_follow = one->unsent_bytes > 0;
  one->sending = true;
  // Called while the outbox uses its lists, or when the session ends.
  out.finished = [weak = weak_from_this(), one] {
    const auto me = weak.lock();
    if (!me) return;
    asio::post(me->home_, [me, one] {
      one->sending = false;
      me->send_window(one);
    });
  };
  out_.add(std::move(out));
  out_.flush(shared_from_this());
  next_window(one);
}

}  // namespace pl::store_server
