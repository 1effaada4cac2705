// SPDX-License-Identifier: Apache-2.0
// Watches of a connection: begin, wait and end. watch_hub collects the changes.
#include <algorithm>
#include <asio/post.hpp>

#include "base/text.hpp"
#include "store/server/session.hpp"
#include "store/server/watch_hub.hpp"

namespace pl::store_server {

using store_protocol::opcode;
namespace flag = store_protocol::flag;

namespace {

// For a client that takes no answers, changes stay in the queue, where they count against its limit.
constexpr std::size_t kMaxUnsentBytes = 1u << 20;
constexpr auto kUnsentPause = std::chrono::milliseconds(10);

}  // namespace

// A watch, and the request that waits for its changes.
struct session::watching {
  explicit watching(asio::io_context& home) : timer(home) {}
  watch_ref watch;
  request_ptr waits;  // null if none waits
  asio::steady_timer timer;
};

void session::dispatch_watch(const request_ptr& request, std::string_view key) {
  if (request->head.op == opcode::watch) return begin_watch(request, key);
  const auto token = request->fields.token.value_or(0);
  const auto found = watches_.find(token);
  if (found == watches_.end())
    return answer(request, {EBADF, "no such watch on this connection: start it again, and read the keys again"});
  if (request->head.op == opcode::watch_end) {
    end_watch(token, {ECANCELED, "the watch was ended"});
    return answer(request, status{});
  }
  const auto one = found->second;
  if (one->waits) return answer(request, {EBUSY, "another request waits for this watch's changes already"});
  one->waits = request;
  one->timer.expires_after(
      std::chrono::milliseconds(std::min<std::uint64_t>(request->head.offset, store_protocol::kMaxWatchWaitMs)));
  one->timer.async_wait([weak = weak_from_this(), one](std::error_code cancelled) {
    if (const auto me = weak.lock(); me && !cancelled) me->answer_watch(one, true);
  });
  one->watch->arm();
}

void session::begin_watch(const request_ptr& request, std::string_view prefix) {
  const std::string& name = wire_->other().principal;
  const auto pool = pools_.find(request->head.pool_id);
  if (pool == pools_.end())
    return answer(request,
                  {ENXIO, format("pool %u is not open on this connection: open it by its name", request->head.pool_id)});
  if (!parts_.access.rights_of(wire_->other(), pool->second).read)
    return answer(request, {EACCES, format("%s may not read pool %s: its access list is \"%s\"", name.c_str(),
                                           pool->second.name.c_str(), pool->second.access.c_str())});
  if (&parts_.values != &parts_.copies)
    return answer(request, {ENOTSUP, "the servers of a cluster have no watches: keys move between them"});
  const bool exact = (request->head.flags & flag::exact) != 0;
  if (exact && prefix.empty()) return answer(request, {EINVAL, "a watch of one key needs the key"});
  const auto principal = parts_.principals.find(name);
  if (principal->watches.load() >= parts_.config.max_principal_watches)
    return answer(request, {EMFILE, format("%s has %llu watches: end some of them first (max_principal_watches)",
                                           name.c_str(), static_cast<unsigned long long>(principal->watches.load()))});
  const auto made = std::make_shared<watching>(home_);
  key_watch::terms terms;
  terms.pool = request->head.pool_id;
  terms.prefix = prefix;
  terms.exact = exact;
  terms.most_bytes = parts_.config.max_principal_watch_bytes;
  // The engine's threads call this with a lock held, so the work is left to the connection's thread.
  terms.wake = [weak = weak_from_this(), weak_watch = std::weak_ptr(made), &home = home_] {
    asio::post(home, [weak, weak_watch] {
      const auto me = weak.lock();
      const auto one = weak_watch.lock();
      if (me && one) me->answer_watch(one, false);
    });
  };
  made->watch = std::make_shared<key_watch>(std::move(terms), principal, parts_.counters);
  const auto token = parts_.watches.add(made->watch);
  // Another connection may have deleted the pool, and its end was reported only to those that watched it then.
  if (const auto known = parts_.engine.pool(request->head.pool_id); !known) {
    parts_.watches.remove(made->watch);
    return answer(request, known.error());
  }
  watches_.emplace(token, made);
  store_protocol::tail fields;
  fields.token = token;
  answer(request, {}, std::move(fields));
}

// Something has changed, or (`is_over`) the time to wait has passed.
void session::answer_watch(const std::shared_ptr<watching>& one, bool is_over) {
  if (!one->waits || closed_) return;
  if (out_.waiting_bytes() > kMaxUnsentBytes) {
    one->timer.expires_after(kUnsentPause);
    one->timer.async_wait([weak = weak_from_this(), one](std::error_code cancelled) {
      // Answers even without a change, because the time to wait has passed.
      if (const auto me = weak.lock(); me && !cancelled) me->answer_watch(one, true);
    });
    return;
  }
  one->watch->disarm();
  const std::uint64_t most = one->waits->head.value_bytes == 0 ? UINT64_MAX : one->waits->head.value_bytes;
  const auto taken = one->watch->take(most, store_protocol::kMaxWatchAnswerBytes);
  if (taken.body.empty() && !taken.has_ended && !is_over) return one->watch->arm();
  one->timer.cancel();
  const auto request = std::exchange(one->waits, nullptr);
  if (taken.body.empty() && taken.has_ended) return answer(request, {ENXIO, "the pool was deleted"});
  answer(request, {}, {}, taken.body, 0, taken.more ? flag::more : std::uint16_t{0});
}

void session::end_watch(std::uint64_t token, const failure& reason) {
  const auto found = watches_.find(token);
  if (found == watches_.end()) return;
  const auto one = found->second;
  watches_.erase(found);
  parts_.watches.remove(one->watch);
  one->watch->disarm();
  one->timer.cancel();
  if (const auto request = std::exchange(one->waits, nullptr)) answer(request, reason);
}

// Of one pool, or of all.
void session::end_watches(const failure& reason, std::optional<store::pool_id> pool) {
  std::vector<std::uint64_t> tokens;
  for (const auto& [token, one] : watches_)
    if (!pool || one->watch->what().pool == *pool) tokens.push_back(token);
  for (const auto token : tokens) end_watch(token, reason);
}

// Sends no answers, because the client has left.
void session::drop_watches() {
  for (const auto& [token, one] : watches_) parts_.watches.remove(one->watch);
}

}  // namespace pl::store_server
