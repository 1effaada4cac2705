// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/replicator.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::store_cluster {
namespace {

constexpr std::uint64_t kPauseNs = 20'000'000;  // before something that failed is tried again

store_client::memory memory_at(const std::byte* at, std::uint64_t bytes) {
  return {reinterpret_cast<std::uint64_t>(at), bytes, std::nullopt};
}

status status_of(const store_client::operation& one) {
  if (one.got.status == 0) return {};
  return failure{one.got.status, one.got.text};
}

// Something is wrong with the connection rather than with what was asked.
bool is_about_connection(int code) {
  return code == ECONNRESET || code == ETIMEDOUT || code == EPROTO || code == ECANCELED || code == EPIPE || code == ENXIO;
}

}  // namespace

struct replicator::spreading {
  change what;
  std::function<void(const result<unsigned>&)> done;
  std::set<std::string> has, asked;
  std::map<std::string, std::uint64_t> again_at_ns;
  std::optional<failure> hopeless;  // no copy can take it
  bool ended = false;
};

replicator::replicator(store::engine& engine, peer_links& links, const std::string& self, std::uint64_t give_up_ns)
    : engine_(engine), links_(links), self_(self), give_up_ns_(give_up_ns), session_(engine.open_session()) {}

replicator::~replicator() { engine_.close_session(session_); }

// With the lock held. The other servers whose word a change of the unit waits for.
std::vector<std::string> replicator::needed(unsigned unit) const {
  const placement& at = view_->map.units[unit];
  std::vector<std::string> out(at.copies.begin() + 1, at.copies.end());
  for (const auto& one : at.joining)
    if (filling_.contains({unit, one})) out.push_back(one);
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
    std::erase_if(filling_, [&](const auto& one) {
      const auto& [unit, name] = one.first;
      const placement& at = now->map.units[unit];
      return !serving || at.copies.empty() || at.copies.front() != self_ || !(at.fills(name) || at.has(name));
    });
    std::erase_if(failing_since_ns_, [&](const auto& one) {
      return std::none_of(now->map.units.begin(), now->map.units.end(), [&](const placement& at) {
        return !at.copies.empty() && at.copies.front() == self_ && at.has(one.first);
      });
    });
    all.assign(under_way_.begin(), under_way_.end());
  }
  for (const auto& one : all) step(one);
}

void replicator::spread(const change& what, std::function<void(const result<unsigned>&)> done) {
  auto one = std::make_shared<spreading>();
  one->what = what;
  one->done = std::move(done);
  {
    const std::lock_guard hold(lock_);
    under_way_.insert(one);
  }
  step(one);
}

// Asks whom it has not asked yet; ends it if nobody is left.
void replicator::step(const spreading_ptr& one) {
  std::vector<peer_name> ask;
  result<unsigned> outcome = 0u;
  bool ends = true;  // with this call
  {
    const std::lock_guard hold(lock_);
    if (one->ended) return;
    const bool mine = serving_ && view_ && !view_->map.units[one->what.unit].copies.empty() &&
                      view_->map.units[one->what.unit].copies.front() == self_;
    if (!mine) {
      outcome = failure{EREMOTE, "another server has the key now; whether it has this change is not known"};
    } else if (one->hopeless) {
      outcome = *one->hopeless;
    } else {
      const std::uint64_t now = monotonic_ns();
      bool complete = true;
      for (const auto& name : needed(one->what.unit)) {
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
        if (copies >= least_copies(one->what.unit)) outcome = copies;
        else outcome = failure{EAGAIN, "too few servers have this change; whether it stays is not known"};
      }
    }
    if (ends) {
      one->ended = true;
      under_way_.erase(one);
    }
  }
  if (ends) return std::exchange(one->done, nullptr)(outcome);
  for (const auto& who : ask) send(one->what, who, [this, one, who](const status& told_us) { told(one, who, told_us); });
}

void replicator::told(const spreading_ptr& one, const peer_name& who, const status& outcome) {
  {
    const std::lock_guard hold(lock_);
    one->asked.erase(who.name);
    if (outcome) {
      one->has.insert(who.name);
      failing_since_ns_.erase(who.name);
    } else if (outcome.code() == EBADMSG || outcome.code() == EFBIG) {
      one->hopeless = outcome.error();  // the value is to blame, not the server
    } else {
      ++failed;
      one->again_at_ns[who.name] = monotonic_ns() + kPauseNs;
      failing_since_ns_.emplace(who.name, monotonic_ns());
      // It is being filled: that starts anew, and nobody waits for it meanwhile. Unless the map may say by now that it is
      // complete: then it must have this, or be voted out.
      if (!promised_.contains({one->what.unit, who.name})) filling_.erase({one->what.unit, who.name});
    }
  }
  if (!outcome && is_about_connection(outcome.code())) links_.forget(who);
  step(one);
}

std::set<std::string> replicator::suspects() const {
  const std::lock_guard hold(lock_);
  std::set<std::string> out;
  const std::uint64_t now = monotonic_ns();
  for (const auto& [name, since] : failing_since_ns_)
    if (now - since > give_up_ns_) out.insert(name);
  return out;
}

std::uint64_t replicator::begin_filling(unsigned unit, const std::string& name) {
  const std::lock_guard hold(lock_);
  return filling_[{unit, name}] = ++fillings_;
}
void replicator::end_filling(unsigned unit, const std::string& name, std::uint64_t filling) {
  const std::lock_guard hold(lock_);
  const auto at = filling_.find({unit, name});
  if (at != filling_.end() && at->second == filling && !promised_.contains(at->first)) filling_.erase(at);
}
bool replicator::fills(unsigned unit, const std::string& name, std::uint64_t filling) const {
  const std::lock_guard hold(lock_);
  const auto at = filling_.find({unit, name});
  return at != filling_.end() && at->second == filling;
}
bool replicator::promise(unsigned unit, const std::string& name, std::uint64_t filling, std::int64_t revision) {
  const std::lock_guard hold(lock_);
  const auto at = filling_.find({unit, name});
  if (at == filling_.end() || at->second != filling) return false;
  promised_[at->first] = revision;
  return true;
}

void replicator::send(const change& what, const peer_name& to, std::function<void(const status&)> done) {
  store_wire::copy_terms terms;
  {
    const std::lock_guard hold(lock_);
    if (!view_) return done(failure{EAGAIN, "not yet"});
    terms.epoch = view_->map.epoch;
    terms.sender = run_;
  }
  terms.version = what.version;
  terms.replaces = what.replaces;
  ++sent;
  if (!what.erased) return send_value(what, to, terms, std::move(done));
  links_.reach(to, what.pool_name, [what, terms, done = std::move(done)](const result<peer_pool>& at) {
    if (!at) return done(at.error());
    auto one = at->to->make_erase(at->pool, what.key, {});
    if (!what.request.empty()) one->fields.who = {what.request.client, what.request.sequence};
    if (what.level != store::durability::pool_default) one->fields.level = what.level;
    one->fields.copy = terms;
    one->then = [done](store_client::operation& ended) { done(status_of(ended)); };
    at->to->start(one);
  });
}

void replicator::send_value(const change& what, const peer_name& to, store_wire::copy_terms terms,
                            std::function<void(const status&)> done) {
  engine_.lookup_async(
      session_, what.pool, what.key, {},
      [this, what, to, terms, done = std::move(done)](const result<store::pinned_value>& found) mutable {
        if (!found && found.code() == ENOENT && !what.erased) {  // a request that came again, and the key went since
          change gone = what;
          gone.erased = true;
          return send(gone, to, std::move(done));
        }
        // This server's own trouble, which is not the other's fault.
        if (!found) return done(failure{EBADMSG, "the value cannot be read for its copies: " + found.error().message});
        const auto value = *found;
        terms.version = value.info.version;
        auto let_go = [this, pin = value.pin] { (void)engine_.unpin(session_, pin); };
        // The value as one piece of memory: where it lies, or a copy of its pieces.
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
        links_.reach(to, what.pool_name, [=, done = std::move(done)](const result<peer_pool>& at) {
          if (!at) {
            let_go();
            return done(at.error());
          }
          store_client::put_request how;
          how.crc = value.info.crc32c;
          how.user_flags = value.info.user_flags;
          if (what.level != store::durability::pool_default) how.level = what.level;
          auto one = at->to->make_put(at->pool, what.key, memory, how);
          if (!what.request.empty()) one->fields.who = {what.request.client, what.request.sequence};
          one->fields.copy = terms;
          one->then = [done, let_go, whole](store_client::operation& ended) {
            let_go();
            done(status_of(ended));
          };
          at->to->start(one);
        });
      });
}

}  // namespace pl::store_cluster
