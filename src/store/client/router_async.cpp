// SPDX-License-Identifier: Apache-2.0
// The router's operations that go on by themselves.
//
//   start ─▶ is the way known? ─yes─▶ client ─▶ settle ─▶ finish
//                 └──no──▶ errand ◀── not now, not here ──┘
//
// A client's thread only ever puts errands into the queue; the router's own threads run them.
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "store/client/router.hpp"
#include "store/client/router_tries.hpp"

namespace pl::store_client {

routed_ptr router::made(std::uint32_t pool, std::string_view key, std::uint64_t bytes, bool changes, int timeout_ms,
                        maker make) const {
  auto one = std::make_shared<routed_operation>();
  one->pool = pool;
  one->key = key;
  one->bytes = bytes;
  one->changes = changes;
  one->make = std::move(make);
  one->deadline = end_of(timeout_ms);
  one->pause = kFirstPause;
  return one;
}

routed_ptr router::make_put(std::uint32_t pool, std::string_view key, const memory& from, const put_request& how) const {
  return made(
      pool, key, from.bytes, true, how.timeout_ms,
      [key = std::string(key), from, how](client& at, std::uint32_t number) { return at.make_put(number, key, from, how); });
}
routed_ptr router::make_get(std::uint32_t pool, std::string_view key, const memory& into, const get_request& how) const {
  return made(
      pool, key, into.bytes, false, how.timeout_ms,
      [key = std::string(key), into, how](client& at, std::uint32_t number) { return at.make_get(number, key, into, how); });
}
routed_ptr router::make_erase(std::uint32_t pool, std::string_view key, const put_request& how) const {
  return made(pool, key, 0, true, how.timeout_ms,
              [key = std::string(key), how](client& at, std::uint32_t number) { return at.make_erase(number, key, how); });
}

router::client_ptr router::known_way(const routed_operation& one, std::string& endpoint, std::uint32_t& pool) {
  const std::lock_guard hold(lock_);
  const auto known = pools_.find(one.pool);
  if (known == pools_.end()) return nullptr;
  endpoint = map_->endpoint_for(known->second.copies, one.key);
  const auto at = connections_.find(endpoint);
  if (at == connections_.end() || at->second.local_of != local_way_to(endpoint).instance) return nullptr;
  const auto number = at->second.pools.find(one.pool);
  if (number == at->second.pools.end()) return nullptr;
  pool = number->second;
  return at->second.to;
}

operation_ptr router::operation_for(const routed_ptr& one, const client_ptr& to, const std::string& endpoint,
                                    std::uint32_t pool) {
  auto op = one->make(*to, pool);
  if (one->changes) op->fields.who = one->who;
  op->deadline = std::min(one->deadline, clock::now() + std::chrono::milliseconds(options_.try_ms) + time_for(one->bytes));
  op->then = [this, one, endpoint, by = std::weak_ptr(to)](operation& ended) { settle(one, ended.got, endpoint, by); };
  return op;
}

void router::start(std::span<const routed_ptr> list) {
  std::map<client_ptr, std::vector<operation_ptr>> by_server;
  const std::uint64_t epoch = map_epoch();
  for (const auto& one : list) {
    if (one->changes) one->who = {id_, next_sequence_++};
    one->epoch = epoch;
    std::string endpoint;
    std::uint32_t pool = 0;
    if (const auto to = known_way(*one, endpoint, pool)) by_server[to].push_back(operation_for(one, to, endpoint, pool));
    else queue({clock::now(), one, {}, {}, {}});
  }
  for (const auto& [to, operations] : by_server) to->start(operations);
}

bool router::test(const routed_ptr& one) const {
  const std::lock_guard hold(hands_lock_);
  return one->done;
}

bool router::wait(const routed_ptr& one, clock::time_point until) {
  std::unique_lock hold(hands_lock_);
  const auto is_done = [&] { return one->done; };
  if (until != clock::time_point::max()) return ended_.wait_until(hold, until, is_done);
  ended_.wait(hold, is_done);
  return true;
}

// Called by any thread, also a client's own: must not block.
void router::settle(const routed_ptr& one, const reply& got, const std::string& endpoint, const std::weak_ptr<client>& by) {
  if (!may_pass(got.status) || clock::now() + one->pause >= one->deadline) return finish(one, got);
  queue({clock::now() + one->pause, one, got, endpoint, by});
  one->pause = std::min(one->pause * 2, kLastPause);
}

void router::finish(const routed_ptr& one, reply got) {
  if (may_pass(got.status)) {
    const std::lock_guard hold(lock_);
    const auto known = pools_.find(one->pool);
    const std::string waits = known == pools_.end() ? std::string() : map_->why_waiting(known->second.copies, one->key);
    if (!waits.empty() && got.text != waits) got.text += "; " + waits;
  }
  const int event = one->event_fd;
  const auto then = std::exchange(one->then, nullptr);
  {
    const std::lock_guard hold(hands_lock_);
    one->got = got;
    one->done = true;
  }
  ended_.notify_all();
  if (event >= 0) (void)eventfd_write(event, 1);
  if (then) then(got);
}

void router::queue(errand what) {
  {
    const std::lock_guard hold(hands_lock_);
    if (!closing_) {
      while (hands_.size() < kHands) hands_.emplace_back([this] { serve(); });
      const auto due = what.due;
      errands_.emplace(due, std::move(what));
      hands_wake_.notify_one();
      return;
    }
  }
  reply gone;
  gone.status = ECANCELED;
  gone.text = "the store was closed";
  finish(what.what, gone);
}

void router::bury(client* gone) {
  {
    const std::lock_guard hold(hands_lock_);
    if (!hands_.empty()) {
      graves_.push_back(gone);
      hands_wake_.notify_one();
      return;
    }
  }
  delete gone;
}

void router::serve() {
  std::unique_lock hold(hands_lock_);
  while (!closing_) {
    if (!graves_.empty()) {
      const std::unique_ptr<client> gone(graves_.back());
      graves_.pop_back();
      hold.unlock();
      // Closed here, without the lock: what was under way is settled by this.
    } else if (errands_.empty()) {
      hands_wake_.wait(hold);
      continue;
    } else if (const auto due = errands_.begin()->first; due > clock::now()) {
      hands_wake_.wait_until(hold, due);
      continue;
    } else {
      const errand next = std::move(errands_.extract(errands_.begin()).mapped());
      hold.unlock();
      run(next);
    }
    hold.lock();
  }
}

void router::run(const errand& what) {
  if (!what.at.empty()) {
    ++retries_;
    if (is_about_connection(what.last.status))
      if (const auto by = what.by.lock()) forget(what.at, by);
    // Somebody else may have asked for the map meanwhile.
    if (map_epoch() == what.what->epoch && (what.last.status != EAGAIN || what.what->pause == kLastPause))
      (void)refresh(what.last.status == EREMOTE ? what.at : std::string());
  }
  launch(what.what);
}

// May block.
void router::launch(const routed_ptr& one) {
  one->epoch = map_epoch();
  const unsigned copies = copies_of(one->pool);
  if (copies == 0) return finish(one, failed_reply(ENXIO, "no such pool is open"));
  const std::string endpoint = endpoint_for(copies, one->key);
  if (endpoint.empty()) return settle(one, failed_reply(EAGAIN, "no server has the key's slot yet"), "nowhere", {});
  const auto to = reach(endpoint);
  if (!to) return settle(one, failed_reply(to.code(), to.error().message), endpoint, {});
  const auto pool = pool_at(endpoint, *to, one->pool);
  if (!pool) return settle(one, failed_reply(pool.code(), pool.error().message), endpoint, *to);
  const auto op = operation_for(one, *to, endpoint, *pool);
  (*to)->start(op);
}

router::~router() {
  std::vector<std::thread> hands;
  {
    const std::lock_guard hold(hands_lock_);
    closing_ = true;
    hands.swap(hands_);
  }
  hands_wake_.notify_all();
  for (auto& one : hands) one.join();
  // From here on clients close where they are let go of.
  for (client* gone : std::exchange(graves_, {})) delete gone;
  std::map<std::string, connection> connections;
  {
    const std::lock_guard hold(lock_);
    connections.swap(connections_);
  }
  connections.clear();
  for (const auto& [due, left] : std::exchange(errands_, {}))
    finish(left.what, failed_reply(ECANCELED, "the store was closed"));
}

}  // namespace pl::store_client
