// SPDX-License-Identifier: Apache-2.0
// Requests that wait for room in the memory tier.
//
//   alloc, short puts    a queue; the connection is read on while what it occupies itself may be given back
//   put in data frames   its frames follow, so the connection is not read; beside other grants and puts of the
//                        connection it does not wait (session_values.cpp, begin_upload)
#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {
namespace {

constexpr auto kRoomPause = std::chrono::milliseconds(2);  // between checks for room
constexpr std::size_t kMaxQueuedBytes = 4 << 20;           // of requests of one connection that wait for room
constexpr std::size_t kQueuedBytes = 1024;                 // of each, in addition to its key and body

}  // namespace

// What occupies memory until the client sends more.
bool session::may_make_room() const {
  const auto is_leased = [](const auto& pin) { return pin.second.is_leased; };
  return !grants_.empty() || !ucx_grants_.empty() || !uploads_.empty() ||
         std::any_of(pinned_.begin(), pinned_.end(), is_leased);
}

// Without those that only later frames can end.
std::size_t session::live_requests() const { return in_flight_ - uploads_.size() - room_queue_.size(); }

// A value of any length, if the connection has nothing else in progress.
status session::may_begin(std::uint64_t held) const {
  if (granted_bytes_ == 0 || granted_bytes_ + held <= parts_.config.max_request_bytes) return {};
  return failure{ENOSPC, format("this connection has %llu bytes in progress, and may have %llu: end some of it first "
                                "(max_request_bytes)",
                                static_cast<unsigned long long>(granted_bytes_),
                                static_cast<unsigned long long>(parts_.config.max_request_bytes))};
}

bool session::has_waited(const pending_request& request) const {
  constexpr std::uint64_t kTimeoutNs = 100'000'000;
  return monotonic_ns() - request.began_ns > kTimeoutNs;
}

bool session::is_queue_full() const { return queued_bytes_ >= kMaxQueuedBytes; }

// Gets of values in memory do not wait for the share, but occupy it. If they follow each other without a pause and occupy
// most of it, a put would wait until its deadline. They wait until enough of them have ended; not for long, because a client
// may keep its pins, and the put may wait for something else.
bool session::lets_puts_pass(const pending_request& request) const {
  constexpr std::uint64_t kRecentNs = 10'000'000;  // the put tries again after kRoomPause
  constexpr std::uint64_t kPatienceNs = 1'000'000'000;
  if (request.head.value_bytes <= kInlineBytes || pins_.all() <= max_held_bytes() / 2) return false;
  const std::uint64_t now_ns = monotonic_ns();
  return now_ns - account_->put_waited_ns < kRecentNs && now_ns - request.began_ns < kPatienceNs &&
         clock::now() + kRoomPause < request.deadline && !closed_ && !wire_->has_left();
}

void session::retry_later(std::function<void()> again) {
  const auto timer = std::make_shared<asio::steady_timer>(home_);
  timer->expires_after(kRoomPause);
  timer->async_wait([timer, again = std::move(again)](std::error_code) { again(); });
}

bool session::may_wait(const pending_request& request) const {
  return !closed_ && !broken_ && clock::now() + kRoomPause < request.deadline;
}

void session::wait_for_room(std::function<void()> again) {
  // Nothing else of this connection is read until then, because later requests would need room too.
  ++parts_.counters.waits_for_room;
  waiting_for_room_ = true;
  room_timer_.expires_after(kRoomPause);
  room_timer_.async_wait([me = shared_from_this(), again = std::move(again)](std::error_code) {
    me->waiting_for_room_ = false;
    // Nothing reads the connection meanwhile, so its end is checked here.
    if (!me->closed_ && me->wire_->has_left()) me->close("left while it waited for room");
    again();
    me->resume();
  });
}

void session::queue_for_room(std::size_t bytes, std::function<bool()> attempt) {
  ++parts_.counters.waits_for_room;
  room_queue_.push_back({bytes + kQueuedBytes, std::move(attempt)});
  queued_bytes_ += room_queue_.back().bytes;
  if (room_queue_.size() == 1) try_queue();
}

void session::try_queue() {
  queue_timer_.expires_after(kRoomPause);
  queue_timer_.async_wait([me = shared_from_this()](std::error_code error) {
    if (error && !me->closed_) return;  // set again
    // While nothing reads the connection, its end is checked here.
    if (!me->closed_ && !me->may_parse() && me->wire_->has_left()) me->close("left while it waited for room");
    while (!me->room_queue_.empty()) {
      auto first = std::move(me->room_queue_.front());  // answering it may parse requests, which may wait too
      me->room_queue_.pop_front();
      me->queued_bytes_ -= first.bytes;
      if (first.attempt()) continue;
      me->queued_bytes_ += first.bytes;
      me->room_queue_.push_front(std::move(first));
      break;
    }
    if (!me->room_queue_.empty()) me->try_queue();
    me->resume();
  });
}

void session::until_room(const request_ptr& request, std::function<status()> step, std::function<void(const status&)> done) {
  const auto attempt = [me = shared_from_this(), request, step = std::move(step), done = std::move(done)] {
    const status now = step();
    if (now.code() == ENOSPC && me->may_wait(*request)) return false;
    done(now);
    return true;
  };
  if (room_queue_.empty() && attempt()) return;
  queue_for_room(request->head.key_bytes, attempt);
}

}  // namespace pl::store_server
