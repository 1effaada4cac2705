// SPDX-License-Identifier: Apache-2.0
#include "store/client/watcher.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace pl::store_client {

using store_protocol::event_kind;
using store_protocol::opcode;
using store_protocol::watch_event;

namespace {

constexpr auto kStopPause = std::chrono::milliseconds(50);
constexpr int kWaitMs = 20'000;    // of one request; the server allows a minute
constexpr int kAnswerMs = 30'000;  // additional time for the answer
constexpr int kEndMs = 1000;

// Whether the server or the connection that knew the watch is gone.
bool must_begin_again(int code) {
  return code == EBADF || code == ECONNRESET || code == ESHUTDOWN || code == EPIPE || code == ECONNREFUSED ||
         code == ENOENT;  // of a socket's path while the server restarts
}

}  // namespace

result<std::unique_ptr<watcher>> watcher::open(client& connection, target watched) {
  std::unique_ptr<watcher> made(new watcher(connection, std::move(watched)));
  if ((connection.server_capabilities() & store_protocol::capability::watch) == 0)
    return failure{ENOTSUP, "the server does not support watches: it is an earlier release"};
  const auto one = made->make_begin();
  connection.start(one);
  connection.wait(one);
  if (auto begun = made->take_token(*one); !begun) return begun.error();
  return made;
}

watcher::~watcher() {
  if (token_ == 0) return;
  const auto one = connection_.make_plain(opcode::watch_end, target_.pool, {}, kEndMs);
  one->fields.token = token_;
  one->may_repeat = false;  // another connection does not know it
  connection_.start(one);
  (void)connection_.wait(one, clock::now() + std::chrono::milliseconds(kEndMs));
}

operation_ptr watcher::make_begin() const {
  auto one = connection_.make_plain(opcode::watch, target_.pool, target_.prefix);
  if (target_.exact) one->head.flags |= store_protocol::flag::exact;
  return one;
}

operation_ptr watcher::make_next() const {
  auto one = connection_.make_plain(opcode::watch_next, target_.pool, {}, kWaitMs + kAnswerMs);
  one->fields.token = token_;
  one->head.offset = kWaitMs;
  return one;
}

status watcher::take_token(const operation& begun) {
  if (begun.got.status != 0) return failure{begun.got.status, begun.got.text};
  token_ = begun.got.fields->token.value_or(0);
  return token_ != 0 ? status{} : status(failure{EPROTO, "the server gave a watch no token"});
}

bool watcher::wait(const operation_ptr& one, clock::time_point deadline) {
  while (!connection_.wait(one, std::min(deadline, clock::now() + kStopPause)))
    if (stopped_ || clock::now() >= deadline) return false;
  return true;
}

result<std::vector<watch_event>> watcher::next(clock::time_point deadline) {
  while (!stopped_) {
    if (asked_ == nullptr) {
      asked_ = token_ == 0 ? make_begin() : make_next();
      connection_.start(asked_);
    }
    if (!wait(asked_, deadline) && !stopped_) return std::vector<watch_event>{};
    if (stopped_) break;
    const auto one = std::exchange(asked_, nullptr);
    const auto& got = one->got;
    const bool is_gone = got.status == ETIMEDOUT || must_begin_again(got.status);
    if (one->head.op == opcode::watch) {
      if (is_gone) return failure{ECONNRESET, got.text};
      if (auto begun = take_token(*one); !begun) return begun.error();
      return std::vector<watch_event>{{event_kind::lost, {}, 0, 0}};
    }
    if (is_gone) {
      token_ = 0;
      continue;
    }
    if (got.status != 0) return failure{got.status, got.text};
    auto events = store_protocol::decode_events(got.body);
    if (!events || !events->empty()) return events;
  }
  return failure{ECANCELED, "the watch was stopped"};
}

}  // namespace pl::store_client
