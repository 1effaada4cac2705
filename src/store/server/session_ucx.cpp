// SPDX-License-Identifier: Apache-2.0
// Values whose bytes go by UCX: asked for, allowed and answered like others, on the connection. The lane's thread tells here
// when bytes have arrived or gone.
//
//   alloc ─▶ room, a random token ─▶ bytes (ucx_listener.hpp) ┐
//   commit ──────────────────────────────────────────────────┴▶ both there: commit ─▶ answer
//
// A session that closes takes its lane down first; what holds it until UCX has let go of its room are the transfers' own
// functions, so the room is used again only then.
#include <asio/post.hpp>
#include <random>

#include "base/text.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {
namespace {

namespace flag = store_wire::flag;
using store_wire::opcode;

std::uint64_t random_token() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

}  // namespace

// ---- The greeting --------------------------------------------------------------------------------------------------------

// Empty: there shall be one.
std::string session::why_no_lane(const store_wire::tail& greeting) const {
  if (!greeting.lane) return "the client offers none";
  if (parts_.lane == nullptr) return parts_.why_no_lane;
  if (greeting.lane->address.empty()) return "the client's offer has no address";
  const bool forced = greeting.lane->any_transport && parts_.lane->offer().any_transport;
  const auto& who = wire_->other();
  if (who.way == store_wire::path::tls && !parts_.config.ucx_beside_tls)
    return "the connection is TLS and UCX does not encrypt: the store's \"ucx_beside_tls\" allows it";
  if (!forced && (who.is_local)) return "the client is on the store's host: shm-direct needs no network";
  return {};
}

void session::join_lane(const request_ptr& what, store_wire::tail fields) {
  if (auto why = why_no_lane(what->fields); !why.empty()) {
    if (what->fields.lane) fields.lane_name = std::move(why);
    return answer(what, {}, std::move(fields));
  }
  auto joined = [me = shared_from_this(), what, fields](result<lane_server::joined_lane> made) mutable {
    asio::post(me->home_, [me, what, fields = std::move(fields), made = std::move(made)]() mutable {
      if (!made) {
        fields.lane_name = made.error().message;
        me->parts_.log.write(event_log::level::warn, "no_lane",
                             {{"peer", me->wire_->other().where}, {"why", made.error().message}});
      } else if (me->closed_) {
        return me->parts_.lane->close(made->session);
      } else {
        me->leave_lane();  // of an earlier greeting
        me->lane_ = made->session;
        fields.lane = made->offer;
        fields.lane_name = me->lane_->lanes;
        me->parts_.log.write(event_log::level::info, "lane",
                             {{"peer", me->wire_->other().where}, {"transports", me->lane_->lanes}});
      }
      me->answer(what, {}, std::move(fields));
    });
  };
  auto lost = [weak = weak_from_this()] {
    if (const auto me = weak.lock())
      asio::post(me->home_, [me] {
        me->parts_.log.write(event_log::level::warn, "lane_lost", {{"peer", me->wire_->other().where}});
        me->leave_lane();
      });
  };
  parts_.lane->join(*what->fields.lane, std::move(joined), std::move(lost));
}

bool session::by_lane(const request& what) const { return (what.head.flags & flag::lane) != 0 && lane_ != nullptr; }

void session::leave_lane() {
  if (lane_) parts_.lane->close(std::exchange(lane_, nullptr));
}

// ---- Puts ----------------------------------------------------------------------------------------------------------------

void session::receive_by_lane(const request_ptr& what, const store::grant& granted, std::uint64_t patch_at,
                              std::string key) {
  const std::uint64_t token = random_token(), bytes = what->head.value_bytes;
  auto& grant = lane_grants_[token];
  grant.what = {granted.length_bytes, what->head.pool_id, std::move(key)};
  grant.id = granted.id;
  grant.whole = patch_at == 0 && bytes == granted.length_bytes;
  hold(granted.length_bytes);
  std::vector<iovec> into;
  std::uint64_t skip = patch_at, left = bytes;
  for (const auto& one : granted.segments) {
    const std::uint64_t begin = std::min(skip, one.size_bytes), part = std::min(left, one.size_bytes - begin);
    skip -= begin;
    left -= part;
    if (part > 0) into.push_back({parts_.engine.arena().base + one.offset_bytes + begin, part});
  }
  parts_.lane->receive(lane_, token, std::move(into), bytes,
                       [me = shared_from_this(), token](const status& outcome, std::uint32_t crc) {
                         asio::post(me->home_, [me, token, outcome, crc] { me->lane_received(token, outcome, crc); });
                       });
  store_wire::tail fields;
  fields.token = token;
  fields.result.emplace().version = granted.base_version;
  fields.result->value_bytes = granted.length_bytes;
  answer(what, {}, std::move(fields));
}

void session::lane_received(std::uint64_t token, const status& outcome, std::uint32_t crc) {
  const auto found = lane_grants_.find(token);
  if (found == lane_grants_.end()) return;
  found->second.arrived = outcome;
  found->second.crc = crc;
  settle_lane_grant(token);
}

void session::abort_lane_grant(const request_ptr& what, std::uint64_t token) {
  auto& grant = lane_grants_.at(token);
  grant.given_up = true;
  if (!grant.arrived && lane_) parts_.lane->stop(lane_, token);
  answer(what, status{});
  settle_lane_grant(token);
}

void session::commit_lane_grant(const request_ptr& what, std::uint64_t token) {
  auto& grant = lane_grants_.at(token);
  if (grant.commit) return answer(what, {EBADF, "this grant is being committed already"});
  grant.commit = what;
  if (settle_lane_grant(token) || what->deadline == clock::time_point::max()) return;
  if (!lane_timer_) lane_timer_ = std::make_unique<asio::steady_timer>(home_);
  // One timer: it looks at all that wait, again and again while one does.
  lane_timer_->expires_after(std::chrono::milliseconds(100));
  lane_timer_->async_wait([weak = weak_from_this()](std::error_code error) {
    if (const auto me = weak.lock(); me && !error) me->expire_lane_commits();
  });
}

void session::expire_lane_commits() {
  bool waiting = false;
  for (auto& [token, grant] : lane_grants_) {
    if (!grant.commit || grant.commit->deadline == clock::time_point::max()) continue;
    if (clock::now() < grant.commit->deadline) {
      waiting = true;
      continue;
    }
    grant.given_up = true;
    if (lane_) parts_.lane->stop(lane_, token);
    answer(std::exchange(grant.commit, nullptr), {ETIMEDOUT, "the value's bytes did not arrive by UCX in time"});
  }
  if (!waiting || closed_) return;
  lane_timer_->expires_after(std::chrono::milliseconds(100));
  lane_timer_->async_wait([weak = weak_from_this()](std::error_code error) {
    if (const auto me = weak.lock(); me && !error) me->expire_lane_commits();
  });
}

// True: the grant is used up.
bool session::settle_lane_grant(std::uint64_t token) {
  auto& waiting = lane_grants_.at(token);
  if (!waiting.arrived || !(waiting.commit || waiting.given_up)) return false;  // a failure is told to who commits
  const lane_grant grant = std::move(waiting);
  lane_grants_.erase(token);
  const auto& what = grant.commit;
  status outcome = *grant.arrived;
  if (grant.given_up) outcome = failure{ECONNABORTED, "the transfer was given up"};
  const std::uint64_t bytes = grant.what.bytes;
  if (outcome && grant.whole && what->fields.crc && *what->fields.crc != grant.crc)
    outcome = failure{
        EBADMSG, format("the value that arrived has checksum %08x, its writer says %08x", grant.crc, *what->fields.crc)};
  if (outcome && !may_still_write(grant.what.pool)) outcome = no_right_any_more(grant.what.pool);
  if (!outcome) {
    let_hold_go(bytes);
    (void)parts_.engine.abort(engine_session_, grant.id);
    if (what) answer(what, outcome.error());
    return true;
  }
  store::commit_options options;
  options.put = put_options_of(what->fields, parts_.values.request_group(grant.what.pool, grant.what.key));
  options.take_crc = grant.whole;  // of chunks that were checked one by one as they came
  options.crc32c = grant.crc;
  const std::string lanes = lane_ ? lane_->lanes : std::string();
  parts_.values.commit_async(engine_session_, grant.id, grant.what.pool, grant.what.key, options,
                             [me = shared_from_this(), what, bytes, lanes](result<store::put_result> done) {
                               me->here([me, what, bytes, lanes, done = std::move(done)] {
                                 me->let_hold_go(bytes);
                                 if (!done) return me->answer(what, done.error());
                                 me->parts_.counters.bytes(store_wire::path::ucx, true, bytes);
                                 store_wire::tail fields;
                                 fields.result = me->outcome_of(*done, bytes, store_wire::path::ucx);
                                 fields.lane_name = lanes;
                                 me->answer(what, {}, std::move(fields));
                               });
                             });
  return true;
}

// ---- Gets ----------------------------------------------------------------------------------------------------------------

void session::send_by_lane(const request_ptr& what, store_wire::tail fields, std::uint64_t pin,
                           const std::vector<std::span<const std::byte>>& pieces, std::uint64_t bytes) {
  parts_.counters.bytes(store_wire::path::ucx, false, bytes);
  fields.result->way = store_wire::path::ucx;
  fields.lane_name = lane_->lanes;
  const auto lane = lane_;  // the answer may find the connection gone
  answer(what, {}, std::move(fields), {}, bytes, flag::lane);
  if (closed_ || bytes == 0) return let_go({&pin, 1});
  std::vector<iovec> from;
  for (const auto& one : pieces) from.push_back({const_cast<std::byte*>(one.data()), one.size()});
  ++under_way_;  // a server that drains lets it end
  parts_.lane->send(lane, what->fields.token.value_or(0), std::move(from), bytes,
                    [me = shared_from_this(), what, pin](const status& outcome, std::uint32_t) {
                      asio::post(me->home_, [me, what, pin, outcome] {
                        me->let_go({&pin, 1});
                        if (!outcome && !me->closed_) return me->answer(what, outcome.error());  // instead of the rest
                        --me->under_way_;
                        me->resume();
                      });
                    });
}

}  // namespace pl::store_server
