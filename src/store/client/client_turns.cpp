// SPDX-License-Identifier: Apache-2.0
// Which puts wait before they are sent.
//
// A put of several messages occupies the store's memory from the first one until its last one has arrived. If all puts
// of a long list sent their first message at once, they would take all the memory, or all requests that the store
// accepts from a connection, and the last messages of the first ones would be behind first messages that the store
// cannot accept yet.
#include <utility>

#include "store/client/client.hpp"

namespace pl::store_client {
namespace {

// Fewer than the store accepts from a connection (max_requests, max_request_bytes), and enough that neither the disk
// nor the copies ever wait for requests.
constexpr std::size_t kMaxTurns = 256;
constexpr std::uint64_t kMaxTurnBytes = 512u << 20;
// Puts whose data frames alternate: a short value does not wait for a long one, and all of them may be longer than the
// store's memory (the store has 16 at a time, of all its clients).
constexpr std::size_t kMaxStreams = 4;

}  // namespace

bool client::may_go(const operation& one) const {
  if (one.method == operation::kind::put_streamed) {
    if (one.goes_alone) return turns_ == 0 && streaming_.empty();
    return streaming_.size() < kMaxStreams;
  }
  const bool another_goes_alone = !held_streams_.empty() && held_streams_.front()->goes_alone;
  return turns_ == 0 || (turns_ < kMaxTurns && turn_bytes_ + one.mine.bytes <= kMaxTurnBytes && !another_goes_alone);
}

// Returns true if the put is sent later.
bool client::waits_its_turn(const operation_ptr& one) {
  using kind = operation::kind;
  const bool is_stream = one->method == kind::put_streamed && one->mine.bytes > 0;
  if (!is_stream && one->method != kind::put_shm && one->method != kind::put_ucx) return false;
  auto& held = is_stream ? held_streams_ : held_grants_;
  if (held.empty() && may_go(*one)) return take_turn(*one), false;
  held.push_back(one);
  return true;
}

void client::take_turn(operation& one) {
  if (one.method == operation::kind::put_streamed || std::exchange(one.has_turn, true)) return;
  ++turns_;
  turn_bytes_ += one.mine.bytes;
}

void client::end_turn(operation& one) {
  if (!std::exchange(one.has_turn, false)) return;
  --turns_;
  turn_bytes_ -= one.mine.bytes;
}

// The connection is lost: every request is submitted again.
void client::forget_turns() {
  for (const auto& [id, one] : asked_) end_turn(*one);
  held_grants_.clear();
  held_streams_.clear();
}

// Returns true if a put was sent.
bool client::send_held_back() {
  bool has_sent = false;
  for (auto* const held : {&held_streams_, &held_grants_}) {
    while (wire_ && !held->empty()) {
      const auto one = held->front();
      if (!one->done() && !may_go(*one)) break;
      held->pop_front();
      if (one->done()) {  // it was too late; no answer will come
        asked_.erase(one->head.request_id);
        continue;
      }
      take_turn(*one);
      send_request(one);
      has_sent = true;
    }
  }
  return has_sent;
}

// The store has no room for a value whose bytes come in data frames, and does not wait for room while this connection's
// other puts occupy it. Returns true if the put is sent again when they have ended.
bool client::try_again_alone(const operation_ptr& one) {
  if (one->method != operation::kind::put_streamed || one->goes_alone || clock::now() >= one->deadline) return false;
  one->goes_alone = true;
  std::erase(streaming_, one);
  asked_.erase(one->head.request_id);
  one->head.request_id = next_request_++;
  one->sent_bytes = 0;
  asked_[one->head.request_id] = one;
  held_streams_.push_front(one);
  return true;
}

}  // namespace pl::store_client
