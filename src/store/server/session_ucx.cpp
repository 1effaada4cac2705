// SPDX-License-Identifier: Apache-2.0
// Values whose bytes go by UCX. Requests, permissions and answers use the connection; the UCX thread reports here when
// bytes have arrived or left.
//
//   alloc ─▶ room, a random token ─▶ bytes (ucx_listener.hpp) ┐
//   commit ──────────────────────────────────────────────────┴▶ both there: commit ─▶ answer
//
// A closing session closes its UCX transport first. The callbacks of the transfers keep the session alive until UCX has
// released its memory, so the memory is not reused before.
#include <algorithm>
#include <asio/post.hpp>
#include <random>

#include "base/text.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {
namespace {

namespace flag = store_protocol::flag;
using store_protocol::opcode;

std::uint64_t random_token() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

}  // namespace

// ---- The handshake
// --------------------------------------------------------------------------------------------------------

// Why this connection gets no UCX transport; empty if it gets one.
std::string session::ucx_refusal(const store_protocol::tail& handshake) const {
  if (!handshake.ucx) return "the client offers none";
  if (parts_.ucx == nullptr) return parts_.ucx_refusal;
  if (handshake.ucx->address.empty()) return "the client's offer has no address";
  const bool forced = handshake.ucx->any_transport && parts_.ucx->offer().any_transport;
  const auto& remote = wire_->other();
  if (remote.way == store_protocol::path::tls && !parts_.config.ucx_beside_tls)
    return "the connection is TLS and UCX does not encrypt: the store's \"ucx_beside_tls\" allows it";
  if (!forced && (remote.is_local)) return "the client is on the store's host: shm-direct needs no network";
  return {};
}

void session::join_ucx(const request_ptr& request, store_protocol::tail fields) {
  if (auto reason = ucx_refusal(request->fields); !reason.empty()) {
    if (request->fields.ucx) fields.ucx_transports = std::move(reason);
    return answer(request, {}, std::move(fields));
  }
  auto joined = [me = shared_from_this(), request, fields](result<ucx_listener::joined_stream> made) mutable {
    asio::post(me->home_, [me, request, fields = std::move(fields), made = std::move(made)]() mutable {
      if (!made) {
        fields.ucx_transports = made.error().message;
        me->parts_.log.write(event_log::level::warn, "ucx_not_joined",
                             {{"peer", me->wire_->other().origin}, {"why", made.error().message}});
      } else if (me->closed_) {
        return me->parts_.ucx->close(made->session);
      } else {
        me->leave_ucx();  // of an earlier handshake
        me->stream_session_ = made->session;
        fields.ucx = made->offer;
        fields.ucx_transports = me->stream_session_->transports;
        me->parts_.log.write(event_log::level::info, "ucx_joined",
                             {{"peer", me->wire_->other().origin}, {"transports", me->stream_session_->transports}});
      }
      me->answer(request, {}, std::move(fields));
    });
  };
  auto lost = [weak = weak_from_this()] {
    if (const auto me = weak.lock())
      asio::post(me->home_, [me] {
        me->parts_.log.write(event_log::level::warn, "ucx_lost", {{"peer", me->wire_->other().origin}});
        me->leave_ucx();
      });
  };
  parts_.ucx->join(*request->fields.ucx, std::move(joined), std::move(lost));
}

bool session::uses_ucx(const pending_request& request) const {
  return (request.head.flags & flag::ucx) != 0 && stream_session_ != nullptr;
}

void session::leave_ucx() {
  if (stream_session_) parts_.ucx->close(std::exchange(stream_session_, nullptr));
}

// ---- Puts ----------------------------------------------------------------------------------------------------------------

void session::receive_by_ucx(const request_ptr& request, const store::grant& granted, std::uint64_t patch_at,
                             std::string key) {
  const std::uint64_t token = random_token(), bytes = request->head.value_bytes;
  auto& grant = ucx_grants_[token];
  grant.room = {granted.length_bytes, request->head.pool_id, std::move(key)};
  grant.id = granted.id;
  grant.whole = patch_at == 0 && bytes == granted.length_bytes;
  hold(std::max(granted.length_bytes, kMinHeldBytes));
  std::vector<iovec> destination;
  std::uint64_t skip = patch_at, left = bytes;
  for (const auto& one : granted.segments) {
    const std::uint64_t begin = std::min(skip, one.size_bytes), part = std::min(left, one.size_bytes - begin);
    skip -= begin;
    left -= part;
    if (part > 0) destination.push_back({parts_.engine.arena().base + one.offset_bytes + begin, part});
  }
  parts_.ucx->receive(stream_session_, token, std::move(destination), bytes,
                      [me = shared_from_this(), token](const status& outcome, std::uint32_t crc) {
                        asio::post(me->home_, [me, token, outcome, crc] { me->ucx_received(token, outcome, crc); });
                      });
  store_protocol::tail fields;
  fields.token = token;
  fields.result.emplace().version = granted.base_version;
  fields.result->value_bytes = granted.length_bytes;
  answer(request, {}, std::move(fields));
}

void session::ucx_received(std::uint64_t token, const status& outcome, std::uint32_t crc) {
  const auto found = ucx_grants_.find(token);
  if (found == ucx_grants_.end()) return;
  found->second.arrived = outcome;
  found->second.crc = crc;
  settle_ucx_grant(token);
}

void session::abort_ucx_grant(const request_ptr& request, std::uint64_t token) {
  auto& grant = ucx_grants_.at(token);
  grant.given_up = true;
  if (!grant.arrived && stream_session_) parts_.ucx->stop(stream_session_, token);
  answer(request, status{});
  settle_ucx_grant(token);
}

void session::commit_ucx_grant(const request_ptr& request, std::uint64_t token) {
  auto& grant = ucx_grants_.at(token);
  if (grant.commit) return answer(request, {EBADF, "this grant is being committed already"});
  grant.commit = request;
  if (settle_ucx_grant(token) || request->deadline == clock::time_point::max()) return;
  if (!ucx_timer_) ucx_timer_ = std::make_unique<asio::steady_timer>(home_);
  // One timer checks all waiting transfers, and runs while there are any.
  ucx_timer_->expires_after(std::chrono::milliseconds(100));
  ucx_timer_->async_wait([weak = weak_from_this()](std::error_code error) {
    if (const auto me = weak.lock(); me && !error) me->expire_ucx_commits();
  });
}

void session::expire_ucx_commits() {
  bool waiting = false;
  for (auto& [token, grant] : ucx_grants_) {
    if (!grant.commit || grant.commit->deadline == clock::time_point::max()) continue;
    if (clock::now() < grant.commit->deadline) {
      waiting = true;
      continue;
    }
    grant.given_up = true;
    if (stream_session_) parts_.ucx->stop(stream_session_, token);
    answer(std::exchange(grant.commit, nullptr), {ETIMEDOUT, "the value's bytes did not arrive by UCX in time"});
  }
  if (!waiting || closed_) return;
  ucx_timer_->expires_after(std::chrono::milliseconds(100));
  ucx_timer_->async_wait([weak = weak_from_this()](std::error_code error) {
    if (const auto me = weak.lock(); me && !error) me->expire_ucx_commits();
  });
}

// Returns true if the grant is used up.
bool session::settle_ucx_grant(std::uint64_t token) {
  auto& waiting = ucx_grants_.at(token);
  if (!waiting.arrived || !(waiting.commit || waiting.given_up)) return false;  // the commit fails
  const ucx_grant grant = std::move(waiting);
  ucx_grants_.erase(token);
  const auto& request = grant.commit;
  status outcome = *grant.arrived;
  if (grant.given_up) outcome = failure{ECONNABORTED, "the transfer was abandoned"};
  const std::uint64_t bytes = grant.room.bytes;
  if (outcome && grant.whole && request->fields.crc && *request->fields.crc != grant.crc)
    outcome = failure{
        EBADMSG, format("the value that arrived has checksum %08x, its writer says %08x", grant.crc, *request->fields.crc)};
  if (outcome && !may_still_write(grant.room.pool)) outcome = permission_lost(grant.room.pool);
  if (!outcome) {
    release_hold(std::max(bytes, kMinHeldBytes));
    (void)parts_.engine.abort(engine_session_, grant.id);
    if (request) answer(request, outcome.error());
    return true;
  }
  store::commit_options options;
  options.put = put_options_of(request->fields, parts_.values.request_group(grant.room.pool, grant.room.key));
  options.take_crc = grant.whole;  // of chunks that were verified as they arrived
  options.crc32c = grant.crc;
  const std::string transports = stream_session_ ? stream_session_->transports : std::string();
  parts_.values.commit_async(engine_session_, grant.id, grant.room.pool, grant.room.key, options,
                             [me = shared_from_this(), request, bytes, transports](result<store::put_result> done) {
                               me->run_on_home_thread([me, request, bytes, transports, done = std::move(done)] {
                                 me->release_hold(std::max(bytes, kMinHeldBytes));
                                 if (!done) return me->answer(request, done.error());
                                 me->parts_.counters.bytes(store_protocol::path::ucx, true, bytes);
                                 store_protocol::tail fields;
                                 fields.result = me->outcome_of(*done, bytes, store_protocol::path::ucx);
                                 fields.ucx_transports = transports;
                                 me->answer(request, {}, std::move(fields));
                               });
                             });
  return true;
}

// ---- Gets ----------------------------------------------------------------------------------------------------------------

void session::send_by_ucx(const request_ptr& request, store_protocol::tail fields, std::uint64_t pin,
                          const std::vector<std::span<const std::byte>>& pieces, std::uint64_t bytes) {
  parts_.counters.bytes(store_protocol::path::ucx, false, bytes);
  fields.result->way = store_protocol::path::ucx;
  fields.ucx_transports = stream_session_->transports;
  const auto stream = stream_session_;  // the connection may be gone when the answer arrives
  answer(request, {}, std::move(fields), {}, bytes, flag::ucx);
  if (closed_ || bytes == 0) return let_go({&pin, 1});
  std::vector<iovec> source;
  for (const auto& one : pieces) source.push_back({const_cast<std::byte*>(one.data()), one.size()});
  ++in_flight_;  // a draining server lets it finish
  parts_.ucx->send(stream, request->fields.token.value_or(0), std::move(source), bytes,
                   [me = shared_from_this(), request, pin](const status& outcome, std::uint32_t) {
                     asio::post(me->home_, [me, request, pin, outcome] {
                       me->let_go({&pin, 1});
                       if (!outcome && !me->closed_) return me->answer(request, outcome.error());  // replaces the rest
                       --me->in_flight_;
                       me->resume();
                     });
                   });
}

}  // namespace pl::store_server
