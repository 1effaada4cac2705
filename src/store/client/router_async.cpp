// SPDX-License-Identifier: Apache-2.0
// The router's asynchronous operations.
//
//   start ─▶ is the server known? ─yes─▶ client ─▶ settle ─▶ finish
//                  └──no──▶ task ◀── not now, not here ──┘
//
// A client's thread only queues tasks; the router's own threads run them.
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "os/blocked_signals.hpp"
#include "store/client/interruption.hpp"
#include "store/client/router.hpp"
#include "store/client/router_tries.hpp"

namespace pl::store_client {
namespace {

constexpr auto kLongestSleep = std::chrono::hours(1);  // a time far away may overflow where the clock is converted

}  // namespace

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

routed_ptr router::make_put(std::uint32_t pool, std::string_view key, const memory& source,
                            const put_request& options) const {
  return made(pool, key, source.bytes, true, options.timeout_ms,
              [key = std::string(key), source, options](client& connection, std::uint32_t number) {
                return connection.make_put(number, key, source, options);
              });
}
routed_ptr router::make_get(std::uint32_t pool, std::string_view key, const memory& destination,
                            const get_request& options) const {
  return made(pool, key, destination.bytes, false, options.timeout_ms,
              [key = std::string(key), destination, options](client& connection, std::uint32_t number) {
                return connection.make_get(number, key, destination, options);
              });
}
routed_ptr router::make_erase(std::uint32_t pool, std::string_view key, const put_request& options) const {
  return made(pool, key, 0, true, options.timeout_ms,
              [key = std::string(key), options](client& connection, std::uint32_t number) {
                return connection.make_erase(number, key, options);
              });
}

router::client_ptr router::known_connection(const routed_operation& one, std::string& endpoint, std::uint32_t& pool) {
  const std::lock_guard hold(lock_);
  const auto known = pools_.find(one.pool);
  if (known == pools_.end()) return nullptr;
  endpoint = map_->endpoint_for(known->second.copies, one.key);
  const auto found = connections_.find(endpoint);
  if (found == connections_.end() || found->second.local_of != local_endpoint_of(endpoint).instance) return nullptr;
  const auto number = found->second.pools.find(one.pool);
  if (number == found->second.pools.end()) return nullptr;
  pool = number->second;
  return found->second.link;
}

operation_ptr router::operation_for(const routed_ptr& one, const client_ptr& target, const std::string& endpoint,
                                    std::uint32_t pool) {
  auto op = one->make(*target, pool);
  if (one->changes) op->fields.request_number = one->request_number;
  op->deadline = std::min(one->deadline, clock::now() + std::chrono::milliseconds(options_.try_ms) + time_for(one->bytes));
  op->callback = [this, one, endpoint, connection = std::weak_ptr(target)](operation& ended) {
    settle(one, ended.got, endpoint, connection);
  };
  auto before = op;  // released without the lock
  const std::lock_guard hold(tasks_lock_);
  one->server = target;
  std::swap(one->attempt, before);
  return op;
}

void router::start(std::span<const routed_ptr> list) {
  std::map<client_ptr, std::vector<operation_ptr>> by_server;
  const std::uint64_t epoch = map_epoch();
  for (const auto& one : list) {
    if (one->changes && one->request_number.client == 0) one->request_number = {id_, next_sequence_++};
    one->epoch = epoch;
    std::string endpoint;
    std::uint32_t pool = 0;
    if (const auto connection = known_connection(*one, endpoint, pool))
      by_server[connection].push_back(operation_for(one, connection, endpoint, pool));
    else queue({clock::now(), one, {}, {}, {}});
  }
  for (const auto& [connection, operations] : by_server) connection->start(operations);
}

bool router::test(const routed_ptr& one) const {
  const std::lock_guard hold(tasks_lock_);
  return one->done;
}

// An operation whose time has passed ends here if it is queued: the workers may be busy connecting to servers that do not
// answer, one after the other.
bool router::wait(const routed_ptr& one, clock::time_point deadline) {
  interruption& mine = own_interruption();
  std::unique_lock hold(tasks_lock_);
  const auto is_done = [&] { return one->done; };
  while (!is_done()) {
    const auto now = clock::now();
    if (now >= deadline) return false;
    if (mine.is_used()) {
      hold.unlock();
      const bool has_come = mine.comes(now);
      hold.lock();
      if (is_done()) return true;
      if (has_come) {
        auto server = one->server.lock();
        auto attempt = one->attempt;
        hold.unlock();
        if (server && attempt) server->interrupt(attempt);
        attempt.reset();
        server.reset();  // without the lock, which closing a client takes
        hold.lock();
        if (is_done()) return true;
      }
    }
    if (now >= one->deadline || mine.has_come()) {
      const auto queued =
          std::find_if(tasks_.begin(), tasks_.end(), [&](const auto& entry) { return entry.second.operation == one; });
      if (queued != tasks_.end()) {
        const retry_task late = std::move(tasks_.extract(queued).mapped());
        hold.unlock();
        if (mine.has_come()) finish(one, failed_reply(EINTR, kInterrupted));
        else finish(one, late.endpoint.empty() ? failed_reply(ETIMEDOUT, "no server was reached in time") : late.last);
        return true;
      }
    }
    const auto next = now < one->deadline && !mine.is_used() ? one->deadline : now + kLastPause / 2;
    ended_.wait_until(hold, std::min({deadline, next, now + kLongestSleep}), is_done);
  }
  return true;
}

void router::call_at_end(const routed_ptr& one, std::function<void(const reply&)> function) {
  {
    const std::lock_guard hold(tasks_lock_);
    if (!one->done) {
      one->callback = std::move(function);
      return;
    }
  }
  function(one->got);
}

// Called by any thread, including a client's own: it must not block.
void router::settle(const routed_ptr& one, const reply& got, const std::string& endpoint,
                    const std::weak_ptr<client>& connection) {
  if (!may_pass(got.status) || clock::now() + one->pause >= one->deadline) return finish(one, got);
  queue({clock::now() + one->pause, one, got, endpoint, connection});
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
  std::function<void(const reply&)> callback;
  operation_ptr attempt;  // released without the lock
  {
    const std::lock_guard hold(tasks_lock_);
    callback = std::exchange(one->callback, nullptr);
    attempt = std::exchange(one->attempt, nullptr);
    one->got = got;
    one->done = true;
  }
  ended_.notify_all();
  if (event >= 0) (void)eventfd_write(event, 1);
  if (callback) callback(got);
}

void router::queue(retry_task task) {
  reply refused = failed_reply(ECANCELED, kClosed);
  {
    const std::lock_guard hold(tasks_lock_);
    if (!closing_) {
      const status able = start_workers();
      if (able) {
        const auto due = task.due;
        tasks_.emplace(due, std::move(task));
        tasks_changed_.notify_one();
        return;
      }
      refused = failed_reply(able.code(), able.error().message);
    }
  }
  finish(task.operation, refused);
}

// Starts the threads; one is enough for success. Precondition: tasks_lock_ is held.
status router::start_workers() {
  while (workers_.size() < kWorkers) {
    auto started = try_start_thread("looks for servers of operations", [this] { serve(); });
    if (!started) return workers_.empty() ? status(started.error()) : status();
    workers_.push_back(*std::move(started));
  }
  return {};
}

void router::close_later(client* gone) {
  {
    const std::lock_guard hold(tasks_lock_);
    if (!workers_.empty()) {
      closing_clients_.push_back(gone);
      tasks_changed_.notify_one();
      return;
    }
  }
  delete gone;
}

void router::serve() {
  std::unique_lock hold(tasks_lock_);
  while (!closing_) {
    if (!closing_clients_.empty()) {
      const std::unique_ptr<client> gone(closing_clients_.back());
      closing_clients_.pop_back();
      hold.unlock();
      // Closed without the lock, which settles its pending operations.
    } else if (tasks_.empty()) {
      tasks_changed_.wait(hold);
      continue;
    } else if (const auto due = tasks_.begin()->first; due > clock::now()) {
      tasks_changed_.wait_until(hold, due);
      continue;
    } else {
      const retry_task next = std::move(tasks_.extract(tasks_.begin()).mapped());
      hold.unlock();
      run(next);
    }
    hold.lock();
  }
}

void router::run(const retry_task& task) {
  const auto end = task.operation->deadline;
  if (!task.endpoint.empty() && clock::now() >= end) return finish(task.operation, task.last);
  if (!task.endpoint.empty()) {
    ++retries_;
    if (is_about_connection(task.last.status))
      if (const auto connection = task.connection.lock()) forget(task.endpoint, connection);
    // Another thread may have fetched the map meanwhile.
    if (map_epoch() == task.operation->epoch && (task.last.status != EAGAIN || task.operation->pause == kLastPause))
      (void)refresh(task.last.status == EREMOTE ? task.endpoint : std::string(), end);
  }
  launch(task.operation);
}

// May block.
void router::launch(const routed_ptr& one) {
  one->epoch = map_epoch();
  const unsigned copies = copies_of(one->pool);
  if (copies == 0) return finish(one, failed_reply(ENXIO, "no such pool is open"));
  const std::string endpoint = endpoint_for(copies, one->key);
  if (endpoint.empty()) return settle(one, failed_reply(EAGAIN, "no server has the key's slot yet"), "nowhere", {});
  const auto connection = reach(endpoint, one->deadline);
  if (!connection) return settle(one, failed_reply(connection.code(), connection.error().message), endpoint, {});
  const auto pool = pool_at(endpoint, *connection, one->pool, one->deadline);
  if (!pool) return settle(one, failed_reply(pool.code(), pool.error().message), endpoint, *connection);
  const auto op = operation_for(one, *connection, endpoint, *pool);
  (*connection)->start(op);
}

router::~router() { shut_down(); }

void router::shut_down() {
  std::vector<std::thread> hands;
  {
    const std::lock_guard hold(tasks_lock_);
    closing_ = true;
    hands.swap(workers_);
  }
  tasks_changed_.notify_all();
  for (auto& one : hands) one.join();
  // From here on, clients are closed where their last reference is released.
  std::vector<client*> gone;
  std::multimap<clock::time_point, retry_task> tasks;
  {
    const std::lock_guard hold(tasks_lock_);
    gone.swap(closing_clients_);
    tasks.swap(tasks_);
  }
  for (client* const one : gone) delete one;
  std::map<std::string, server_link> connections;
  std::vector<std::weak_ptr<client>> clients;
  {
    const std::lock_guard hold(lock_);
    connections.swap(connections_);
    clients.swap(clients_);
  }
  for (const auto& each : clients)
    if (const auto one = each.lock()) one->shut_down();  // other threads may be in calls on it
  for (const auto& [due, left] : tasks) finish(left.operation, failed_reply(ECANCELED, kClosed));
}

}  // namespace pl::store_client
