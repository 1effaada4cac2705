// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/replicator.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::store_cluster {
namespace {

constexpr std::uint64_t kPauseNs = 20'000'000;  // before a failed step is repeated

store_client::memory memory_at(const std::byte* data, std::uint64_t bytes) {
  return {reinterpret_cast<std::uint64_t>(data), bytes, std::nullopt};
}

status status_of(const store_client::operation& one) {
  if (one.got.status == 0) return {};
  return failure{one.got.status, one.got.text};
}

// The error concerns the connection, not the request.
bool is_about_connection(int code) {
  return code == ECONNRESET || code == ETIMEDOUT || code == EPROTO || code == ECANCELED || code == EPIPE || code == ENXIO;
}

}  // namespace

struct replicator::spreading {
  change mutation;
  std::function<void(const result<unsigned>&)> done;
  std::set<std::string> has, asked;
  std::map<std::string, std::uint64_t> again_at_ns;
  std::optional<failure> permanent_failure;  // no replica can store it
  bool ended = false;
};

replicator::replicator(store::engine& engine, peer_links& links, const std::string& self, std::uint64_t give_up_ns)
    : engine_(engine), links_(links), self_(self), give_up_ns_(give_up_ns), session_(engine.open_session()) {}

replicator::~replicator() { engine_.close_session(session_); }

// The other servers that must confirm a change of the unit. Precondition: the lock is held.
std::vector<std::string> replicator::needed(unsigned unit) const {
  const placement& entry = view_->map.units[unit];
  std::vector<std::string> out(entry.copies.begin() + 1, entry.copies.end());
  for (const auto& one : entry.joining)
    if (catching_up_.contains({unit, one})) out.push_back(one);
  return out;
}

unsigned replicator::reachable_copies(unsigned unit) const {
  const std::lock_guard hold(lock_);
  if (!view_ || view_->map.units[unit].copies.empty()) return 0;
  return static_cast<unsigned>(needed(unit).size()) + 1;
}

void replicator::act_by(const view_ptr& now, bool serving, std::uint64_t run) {
  std::vector<spreading_ptr> all;
  {
    const std::lock_guard hold(lock_);
    view_ = now;
    serving_ = serving;
    run_ = run;
    std::erase_if(promised_, [&](const auto& one) { return !serving || now->map_revision != one.second; });
    std::erase_if(catching_up_, [&](const auto& one) {
      const auto& [unit, name] = one.first;
      const placement& entry = now->map.units[unit];
      return !serving || entry.copies.empty() || entry.copies.front() != self_ || !(entry.fills(name) || entry.has(name));
    });
    std::erase_if(failing_since_ns_, [&](const auto& one) {
      return std::none_of(now->map.units.begin(), now->map.units.end(), [&](const placement& entry) {
        return !entry.copies.empty() && entry.copies.front() == self_ && entry.has(one.first);
      });
    });
    all.assign(in_flight_.begin(), in_flight_.end());
  }
  for (const auto& one : all) step(one);
}

void replicator::spread(const change& change, std::function<void(const result<unsigned>&)> done) {
  auto one = std::make_shared<spreading>();
  one->mutation = change;
  one->done = std::move(done);
  {
    const std::lock_guard hold(lock_);
    in_flight_.insert(one);
  }
  step(one);
}

// Sends the change to servers that do not have it yet; ends it when none is left.
void replicator::step(const spreading_ptr& one) {
  std::vector<peer_name> ask;
  result<unsigned> outcome = 0u;
  bool ends = true;  // in this call
  {
    const std::lock_guard hold(lock_);
    if (one->ended) return;
    const bool mine = serving_ && view_ && !view_->map.units[one->mutation.unit].copies.empty() &&
                      view_->map.units[one->mutation.unit].copies.front() == self_;
    if (!mine) {
      outcome = failure{EREMOTE, "another server has the key now; it is unknown whether it has this change"};
    } else if (one->permanent_failure) {
      outcome = *one->permanent_failure;
    } else {
      const std::uint64_t now = monotonic_ns();
      bool complete = true;
      for (const auto& name : needed(one->mutation.unit)) {
        if (one->has.contains(name)) continue;
        complete = false;
        const auto known = view_->map.servers.find(name);
        if (known == view_->map.servers.end() || one->asked.contains(name) || now < one->again_at_ns[name]) continue;
        one->asked.insert(name);
        ask.push_back({name, known->second.endpoint, known->second.run});
      }
      const auto copies = static_cast<unsigned>(one->has.size()) + 1;
      ends = complete;
      if (complete) {
        if (copies >= least_copies(one->mutation.unit)) outcome = copies;
        else outcome = failure{EAGAIN, "too few servers have this change; it is unknown whether it stays"};
      }
    }
    if (ends) {
      one->ended = true;
      in_flight_.erase(one);
    }
  }
  if (ends) return std::exchange(one->done, nullptr)(outcome);
  for (const auto& peer : ask)
    send(one->mutation, peer, [this, one, peer](const status& peer_outcome) { on_copy_answer(one, peer, peer_outcome); });
}

void replicator::on_copy_answer(const spreading_ptr& one, const peer_name& peer, const status& outcome) {
  {
    const std::lock_guard hold(lock_);
    one->asked.erase(peer.name);
    if (outcome) {
      one->has.insert(peer.name);
      failing_since_ns_.erase(peer.name);
    } else if (outcome.code() == EBADMSG || outcome.code() == EFBIG) {
      one->permanent_failure = outcome.error();  // the value is at fault, not the server
    } else {
      ++failed;
      one->again_at_ns[peer.name] = monotonic_ns() + kPauseNs;
      failing_since_ns_.emplace(peer.name, monotonic_ns());
      // The server is catching up: the catch-up restarts, and no change waits for it meanwhile. Exception: if the map
      // may already call the server complete, it must have this change or be voted out.
      if (!promised_.contains({one->mutation.unit, peer.name})) catching_up_.erase({one->mutation.unit, peer.name});
    }
  }
  if (!outcome && is_about_connection(outcome.code())) links_.forget(peer);
  step(one);
}

std::set<std::string> replicator::suspects() const {
  const std::lock_guard hold(lock_);
  std::set<std::string> out;
  const std::uint64_t now = monotonic_ns();
  for (const auto& [name, failing_since] : failing_since_ns_)
    if (now - failing_since > give_up_ns_) out.insert(name);
  return out;
}

std::uint64_t replicator::begin_catch_up(unsigned unit, const std::string& name) {
  const std::lock_guard hold(lock_);
  return catching_up_[{unit, name}] = ++catch_ups_;
}
void replicator::end_catch_up(unsigned unit, const std::string& name, std::uint64_t catch_up_number) {
  const std::lock_guard hold(lock_);
  const auto found = catching_up_.find({unit, name});
  if (found != catching_up_.end() && found->second == catch_up_number && !promised_.contains(found->first))
    catching_up_.erase(found);
}
bool replicator::fills(unsigned unit, const std::string& name, std::uint64_t catch_up_number) const {
  const std::lock_guard hold(lock_);
  const auto found = catching_up_.find({unit, name});
  return found != catching_up_.end() && found->second == catch_up_number;
}
bool replicator::promise(unsigned unit, const std::string& name, std::uint64_t catch_up_number, std::int64_t revision) {
  const std::lock_guard hold(lock_);
  const auto found = catching_up_.find({unit, name});
  if (found == catching_up_.end() || found->second != catch_up_number) return false;
  promised_[found->first] = revision;
  return true;
}

void replicator::send(const change& change, const peer_name& peer, std::function<void(const status&)> done) {
  store_protocol::copy_terms terms;
  {
    const std::lock_guard hold(lock_);
    if (!view_) return done(failure{EAGAIN, "not yet"});
    terms.epoch = view_->map.epoch;
    terms.sender = run_;
  }
  terms.version = change.version;
  terms.replaces = change.replaces;
  ++sent;
  if (!change.erased) return send_value(change, peer, terms, std::move(done));
  links_.reach(peer, change.pool_name, [change, terms, done = std::move(done)](const result<peer_pool>& target) {
    if (!target) return done(target.error());
    auto one = target->connection->make_erase(target->pool, change.key, {});
    if (!change.request.empty()) one->fields.request_number = {change.request.client, change.request.sequence};
    if (change.level != store::durability::pool_default) one->fields.level = change.level;
    one->fields.copy = terms;
    one->callback = [done](store_client::operation& ended) { done(status_of(ended)); };
    target->connection->start(one);
  });
}

void replicator::send_value(const change& mutation, const peer_name& peer, store_protocol::copy_terms terms,
                            std::function<void(const status&)> done) {
  engine_.lookup_async(
      session_, mutation.pool, mutation.key, {},
      [this, mutation, peer, terms, done = std::move(done)](const result<store::pinned_value>& found) mutable {
        if (!found && found.code() == ENOENT && !mutation.erased) {  // a repeated request whose key was erased since
          change gone = mutation;
          gone.erased = true;
          return send(gone, peer, std::move(done));
        }
        // An error of this server, not of the other.
        if (!found) return done(failure{EBADMSG, "the value cannot be read for its copies: " + found.error().message});
        const auto value = *found;
        terms.version = value.info.version;
        auto let_go = [this, pin = value.pin] { (void)engine_.unpin(session_, pin); };
        // The value in one piece: in place, or as a copy of its pieces.
        auto whole = std::make_shared<std::vector<std::byte>>();
        const std::byte* base = engine_.arena().base;
        const std::byte* at_bytes = value.segments.empty() ? base : base + value.segments.front().offset_bytes;
        if (value.segments.size() > 1) {
          whole->reserve(value.info.length_bytes);
          for (const auto& piece : value.segments)
            whole->insert(whole->end(), base + piece.offset_bytes, base + piece.offset_bytes + piece.size_bytes);
          at_bytes = whole->data();
        }
        const auto memory = memory_at(at_bytes, value.info.length_bytes);
        const std::string owner = engine_.owner_name(value.info.owner);
        links_.reach(peer, mutation.pool_name, [=, done = std::move(done)](const result<peer_pool>& target) {
          if (!target) {
            let_go();
            return done(target.error());
          }
          store_client::put_request options;
          options.crc = value.info.crc32c;
          options.user_flags = value.info.user_flags;
          if (mutation.level != store::durability::pool_default) options.level = mutation.level;
          auto one = target->connection->make_put(target->pool, mutation.key, memory, options);
          if (!mutation.request.empty()) one->fields.request_number = {mutation.request.client, mutation.request.sequence};
          one->fields.copy = terms;
          if (!owner.empty()) one->fields.owner = owner;
          one->callback = [done, let_go, whole](store_client::operation& ended) {
            let_go();
            done(status_of(ended));
          };
          target->connection->start(one);
        });
      });
}

}  // namespace pl::store_cluster
