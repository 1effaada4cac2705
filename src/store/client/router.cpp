// SPDX-License-Identifier: Apache-2.0
#include "store/client/router.hpp"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include "base/text.hpp"
#include "store/client/interruption.hpp"
#include "store/client/router_tries.hpp"

namespace pl::store_client {
namespace {

using store_protocol::opcode;
std::uint64_t random_id() {
  std::random_device random;
  return (std::uint64_t{random()} << 32 | random()) | 1;
}

}  // namespace

router::router(const router_options& options) : options_(options), id_(random_id()), map_(std::make_shared<cluster_map>()) {}

result<std::unique_ptr<router>> router::open(const router_options& options) {
  std::unique_ptr<router> made(new router(options));
  if (const status known = made->refresh({}, made->end_of(-1)); !known) return known.error();
  return made;
}

result<memory> router::classify(std::uint64_t address, std::uint64_t bytes) const {
  return find_memory(options_.cuda, options_.copies, address, bytes);
}

std::shared_ptr<const cluster_map> router::current_map() const {
  const std::lock_guard hold(lock_);
  return map_;
}

std::vector<std::string> router::endpoints() const {
  const std::lock_guard hold(lock_);
  std::vector<std::string> out;
  for (const auto& [name, one] : map_->servers) out.push_back(one.endpoint);
  for (const auto& one : options_.servers)
    if (std::find(out.begin(), out.end(), one) == out.end()) out.push_back(one);
  return out;
}

std::uint64_t router::map_epoch() const {
  const std::lock_guard hold(lock_);
  return map_->epoch;
}

std::string router::endpoint_for(unsigned copies, std::string_view key) const {
  const std::lock_guard hold(lock_);
  return map_->endpoint_for(copies, key);
}

clock::time_point router::end_of(int timeout_ms) const {
  return clock::now() + std::chrono::milliseconds(timeout_ms < 0 ? static_cast<int>(options_.timeout_ms) : timeout_ms);
}

// Precondition: the lock is held.
router::local_endpoint router::local_endpoint_of(const std::string& endpoint) const {
  if (!options_.use_shm || !options_.security.tls_certificate.empty()) return {};
  for (const auto& [name, one] : map_->servers)
    if (one.endpoint == endpoint && !one.socket.empty()) return {one.socket, one.instance};
  return {};
}

// Uses the unix socket if it leads to the same server, because a path is valid only on one host and in one container.
result<router::client_ptr> router::connect_to(const std::string& endpoint, const local_endpoint& local,
                                              clock::time_point end) {
  client_options options;
  options.timeout_ms = std::min(options_.try_ms, options_.timeout_ms);
  options.copies = options_.copies;
  options.cuda = options_.cuda;
  options.reconnect = false;
  options.require = options_.require;
  const auto close_it_later = [this](client* gone) { close_later(gone); };
  if (local.instance != 0 && access(local.socket.c_str(), R_OK | W_OK) == 0) {
    options.server.socket = local.socket;
    options.connect_ms = connect_ms(end);
    if (auto made = client::open(options); made && (*made)->server_instance() == local.instance)
      return client_ptr(made->release(), close_it_later);
  }
  options.use_shm = false;
  options.server = options_.security;
  options.server.socket.clear();
  options.server.endpoint = endpoint;
  options.connect_ms = connect_ms(end);
  auto made = client::open(options);
  if (!made) return made.error();
  return client_ptr(made->release(), close_it_later);
}

unsigned router::connect_ms(clock::time_point end) const {
  return static_cast<unsigned>(milliseconds_until(std::min(end, clock::now() + std::chrono::milliseconds(options_.try_ms))));
}

result<router::client_ptr> router::reach(const std::string& endpoint, clock::time_point end) {
  local_endpoint local;
  {
    const std::lock_guard hold(lock_);
    local = local_endpoint_of(endpoint);
    // Reconnects to a server that was asked for the map before its other addresses were known.
    if (const auto found = connections_.find(endpoint);
        found != connections_.end() && found->second.local_of == local.instance)
      return found->second.link;
  }
  auto mine = closing_ ? failure{ECANCELED, kClosed} : connect_to(endpoint, local, end);
  if (!mine) return mine.error();
  server_link before;  // released after the lock
  const std::lock_guard hold(lock_);
  if (closing_) return failure{ECANCELED, kClosed};
  auto& entry = connections_[endpoint];
  if (entry.link == nullptr || entry.local_of != local.instance) {  // otherwise another thread was faster
    std::erase_if(clients_, [](const auto& one) { return one.expired(); });
    clients_.push_back(*mine);
    before = std::exchange(entry, server_link{*std::move(mine), {}, local.instance});
  }
  return entry.link;
}

void router::forget(const std::string& endpoint, const client_ptr& target) {
  server_link gone;  // released after the lock
  const std::lock_guard hold(lock_);
  const auto found = connections_.find(endpoint);
  if (found == connections_.end() || found->second.link != target) return;
  gone = std::move(found->second);
  connections_.erase(found);
}

status router::refresh(const std::string& first, clock::time_point end) {
  auto list = endpoints();
  if (const auto found = std::find(list.begin(), list.end(), first); found != list.end())
    std::rotate(list.begin(), found, found + 1);
  failure last{EHOSTUNREACH, "no server of the cluster is known: give the address of one"};
  bool answered = false;
  for (const auto& endpoint : list) {
    if (clock::now() >= end || failure_of_wait()) break;
    const auto connection = reach(endpoint, end);
    if (!connection) {
      last = connection.error();
      continue;
    }
    const auto one = (*connection)->make_plain(opcode::cluster_map, 0, {}, static_cast<int>(options_.try_ms));
    one->deadline = std::min(one->deadline, end);
    const auto got = (*connection)->run(one);
    if (got.status != 0) {
      if (may_pass(got.status)) forget(endpoint, *connection);
      last = {got.status, got.text};
      continue;
    }
    auto map = read_cluster_map(got.body);
    if (!map) return map.error();
    answered = true;
    const std::lock_guard hold(lock_);
    if (map->epoch <= map_->epoch) continue;  // this server may be cut off, so another one may know a later map
    map_ = std::make_shared<const cluster_map>(*std::move(map));
    return {};
  }
  return answered ? status{} : status(last);
}

// ---- Pools ---------------------------------------------------------------------------------------------------------------

result<std::uint32_t> router::remember(const std::string& name, const reply& got) {
  if (got.status != 0) return failure{got.status, got.text};
  const unsigned copies = got.fields->settings ? got.fields->settings->copies : 1u;
  const std::lock_guard hold(lock_);
  for (const auto& [number, one] : pools_)
    if (one.name == name && one.copies == copies) return number;
  const auto number = static_cast<std::uint32_t>(pools_.size() + 1);
  pools_[number] = {name, copies};
  return number;
}

unsigned router::copies_of(std::uint32_t pool) const {
  const std::lock_guard hold(lock_);
  const auto known = pools_.find(pool);
  return known == pools_.end() ? 0 : known->second.copies;
}

reply router::ask_anyone(opcode op, std::string_view key, const store_protocol::tail& fields) {
  const auto deadline = clock::now() + std::chrono::milliseconds(options_.timeout_ms);
  reply last = failed_reply(EHOSTUNREACH, "no server of the cluster is known");
  for (auto pause = kFirstPause; clock::now() < deadline; pause = std::min(pause * 2, kLastPause)) {
    for (const auto& endpoint : endpoints()) {
      if (auto failed = failure_of_wait()) return *std::move(failed);
      if (clock::now() >= deadline) return last;
      const auto connection = reach(endpoint, deadline);
      if (!connection) {
        last = failed_reply(connection.code(), connection.error().message);
        continue;
      }
      auto one = (*connection)->make_plain(op, 0, key);
      one->deadline = std::min(one->deadline, deadline);
      one->fields = fields;
      last = (*connection)->run(one);
      if (!may_pass(last.status)) return last;
      forget(endpoint, *connection);
    }
    std::this_thread::sleep_for(pause);
    ++retries_;
  }
  return last;
}

result<std::uint32_t> router::open_pool(const std::string& name) {
  return remember(name, ask_anyone(opcode::pool_open, name));
}

result<std::uint32_t> router::create_pool(const std::string& name, const store_protocol::pool_settings& settings,
                                          const std::optional<store_protocol::cache_settings>& cache) {
  store_protocol::tail fields;
  fields.settings = settings;
  fields.cache = cache;
  fields.request_number = {id_, next_sequence_++};  // a server that is asked again knows its own pool by it
  return remember(name, ask_anyone(opcode::pool_create, name, fields));
}

result<std::uint32_t> router::pool_at(const std::string& endpoint, const client_ptr& connection, std::uint32_t pool,
                                      clock::time_point end) {
  std::string name;
  {
    const std::lock_guard hold(lock_);
    const auto known = pools_.find(pool);
    if (known == pools_.end()) return failure{ENXIO, "no such pool is open"};
    name = known->second.name;
    if (const auto found = connections_.find(endpoint); found != connections_.end() && found->second.link == connection)
      if (const auto number = found->second.pools.find(pool); number != found->second.pools.end()) return number->second;
  }
  const auto limit = std::min(end, clock::now() + std::chrono::milliseconds(options_.try_ms));
  const auto opened = connection->open_pool(name, milliseconds_until(limit));
  if (!opened) return opened;
  const std::lock_guard hold(lock_);
  if (const auto found = connections_.find(endpoint); found != connections_.end() && found->second.link == connection)
    found->second.pools[pool] = *opened;
  return opened;
}

// ---- Values --------------------------------------------------------------------------------------------------------------

reply router::attempt(const std::string& endpoint, std::uint32_t pool, clock::time_point deadline, const maker& make) {
  const auto connection = reach(endpoint, deadline);
  if (!connection) return failed_reply(connection.code(), connection.error().message);
  const auto number = pool_at(endpoint, *connection, pool, deadline);
  if (!number) {
    if (may_pass(number.code())) forget(endpoint, *connection);
    return failed_reply(number.code(), number.error().message);
  }
  const auto one = make(**connection, *number);
  one->deadline = deadline;
  reply got = (*connection)->run(one);
  if (is_about_connection(got.status)) forget(endpoint, *connection);
  return got;
}

std::optional<reply> router::failure_of_wait() const {
  if (closing_) return failed_reply(ECANCELED, kClosed);
  if (own_interruption().comes(clock::now())) return failed_reply(EINTR, kInterrupted);
  return std::nullopt;
}

std::optional<reply> router::pause_for_newer_map(std::chrono::milliseconds pause, clock::time_point end) {
  ++retries_;
  (void)refresh({}, end);
  std::this_thread::sleep_for(pause);
  return failure_of_wait();
}

reply router::routed(std::uint32_t pool, std::string_view key, std::uint64_t bytes, bool changes, int timeout_ms,
                     const maker& make) {
  const auto end = end_of(timeout_ms);
  const auto timeout = std::chrono::milliseconds(options_.try_ms) + time_for(bytes);
  const store_protocol::sequence sequence{id_, changes ? next_sequence_++ : 0};
  const unsigned copies = copies_of(pool);
  if (copies == 0) return failed_reply(ENXIO, "no such pool is open");
  reply last;
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLastPause)) {
    std::string endpoint, waits;
    {
      const std::lock_guard hold(lock_);
      endpoint = map_->endpoint_for(copies, key);
      waits = map_->why_waiting(copies, key);
    }
    if (endpoint.empty()) last = failed_reply(EAGAIN, waits.empty() ? "no server has the key's slot yet" : waits);
    else
      last = attempt(endpoint, pool, std::min(end, clock::now() + timeout), [&](client& connection, std::uint32_t number) {
        auto one = make(connection, number);
        if (changes) one->fields.request_number = sequence;
        return one;
      });
    if (!may_pass(last.status)) return last;
    if (clock::now() + pause >= end) {
      if (!waits.empty() && !endpoint.empty()) last.text += "; " + waits;
      return last;
    }
    ++retries_;
    if (last.status != EAGAIN) (void)refresh(last.status == EREMOTE ? endpoint : std::string(), end);
    else if (pause == kLastPause) (void)refresh({}, end);
    std::this_thread::sleep_for(pause);
    if (auto failed = failure_of_wait()) return *std::move(failed);
  }
}

reply router::put(std::uint32_t pool, std::string_view key, const memory& source, const put_request& options) {
  return routed(pool, key, source.bytes, true, options.timeout_ms,
                [&](client& connection, std::uint32_t number) { return connection.make_put(number, key, source, options); });
}

reply router::get(std::uint32_t pool, std::string_view key, const memory& destination, const get_request& options) {
  return routed(pool, key, destination.bytes, false, options.timeout_ms, [&](client& connection, std::uint32_t number) {
    return connection.make_get(number, key, destination, options);
  });
}

reply router::erase(std::uint32_t pool, std::string_view key, const put_request& options) {
  return routed(pool, key, 0, true, options.timeout_ms,
                [&](client& connection, std::uint32_t number) { return connection.make_erase(number, key, options); });
}

reply router::stat(std::uint32_t pool, std::string_view key) {
  return routed(pool, key, 0, false, -1,
                [&](client& connection, std::uint32_t number) { return connection.make_plain(opcode::stat, number, key); });
}

}  // namespace pl::store_client
