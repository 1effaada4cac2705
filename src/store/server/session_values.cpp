// SPDX-License-Identifier: Apache-2.0
// Operations on values: each takes a request, runs it on the engine, and answers once.
#include <algorithm>
#include <asio/post.hpp>
#include <thread>

#include "base/clock.hpp"
#include "base/live_counter.hpp"
#include "base/text.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {
namespace {

// For `peerlane top`; metrics.hpp serves monitoring systems.
live_counter g_live_puts{"store.puts"};
live_counter g_live_gets{"store.gets"};
live_counter g_live_others{"store.other_requests"};

using store_protocol::opcode;
namespace flag = store_protocol::flag;
static_assert(static_cast<int>(store::condition::if_absent) == static_cast<int>(store_protocol::condition::if_absent));
static_assert(static_cast<int>(store::condition::if_present) == static_cast<int>(store_protocol::condition::if_present));
static_assert(static_cast<int>(store::condition::if_version) == static_cast<int>(store_protocol::condition::if_version));

}  // namespace

store::owner_id session::owner_of(const store_protocol::tail& fields) const {
  if (comes_from_server(fields)) return parts_.quotas->owner_of(fields.owner.value_or(""));
  if (owner_ == 0) owner_ = parts_.quotas->owner_of(wire_->other().principal);
  return owner_;
}

store::put_options session::put_options_of(const store_protocol::tail& fields, std::uint16_t request_group) const {
  store::put_options out;
  if (fields.level) out.level = *fields.level;
  if (fields.only) {
    out.precondition = static_cast<store::condition>(fields.only->kind);
    out.expected_version = fields.only->version;
  }
  if (fields.user_flags) out.user_flags = *fields.user_flags;
  if (fields.ttl_ms) out.ttl_ms = *fields.ttl_ms;
  if (fields.request_number) out.request = {fields.request_number->client, fields.request_number->number, request_group};
  if (comes_from_server(fields)) out.copy = {fields.copy->version, fields.copy->replaces};
  out.owner = owner_of(fields);
  return out;
}

namespace {

std::vector<store_protocol::extent> extents_of(const std::vector<store::segment>& segments) {
  std::vector<store_protocol::extent> out;
  for (const auto& one : segments) out.push_back({one.offset_bytes, one.size_bytes});
  return out;
}

bool goes_to_device(const session::pending_request& request) { return (request.head.flags & flag::device) != 0; }

// Of a get: whether it requires the value to be in memory.
bool wants_pin(const session::pending_request& request) {
  return request.head.op == opcode::lookup || goes_to_device(request);
}

bool writes(opcode op) { return op == opcode::put || op == opcode::alloc || op == opcode::erase; }

}  // namespace

store_protocol::outcome session::outcome_of(const store::put_result& done, std::uint64_t bytes,
                                            store_protocol::path way) const {
  store_protocol::outcome out;
  out.version = done.version;
  out.crc = done.crc32c;
  out.has_crc = true;
  out.way = way;
  out.reached = done.reached;
  out.value_bytes = bytes;
  out.repeated = done.repeated;
  out.copies = static_cast<std::uint8_t>(done.copies);
  return out;
}

store_protocol::outcome session::outcome_of(const store::value_info& info) const {
  store_protocol::outcome out;
  out.version = info.version;
  out.crc = info.crc32c;
  out.has_crc = true;
  out.way = wire_->other().way;
  out.reached = info.level;
  out.user_flags = info.user_flags;
  out.value_bytes = info.length_bytes;
  out.written_unix_ns = info.written_unix_ns;
  return out;
}

void session::dispatch(const request_ptr& request, std::string_view key, std::string_view body) {
  const opcode op = request->head.op;
  if (op == opcode::arrived) return arrived(request);
  if (op == opcode::commit || op == opcode::abort) return commit(request);
  if (dispatch_other(request, key, body)) return;
  const auto pool = pools_.find(request->head.pool_id);
  if (pool == pools_.end())
    return answer(request,
                  {ENXIO, format("pool %u is not open on this connection: open it by its name", request->head.pool_id)});
  if (op >= opcode::batch_get && op <= opcode::erase_prefix) return dispatch_batch(request, pool->second, key, body);
  dispatch_value(request, pool->second, key, body);
}

// Why mapped memory is refused to a request; null if it is allowed or not requested.
const char* session::why_not_mapped(opcode op) const {
  if (op != opcode::alloc && op != opcode::lookup) return nullptr;
  if (mapped_ == mapping::none) return "the arena is not attached";
  if (op == opcode::alloc && mapped_ == mapping::read) return "the arena is attached to read only";
  return nullptr;
}

void session::dispatch_value(const request_ptr& request, const pool_policy& pool, std::string_view key,
                             std::string_view body) {
  const opcode op = request->head.op;
  const rights may = parts_.access.rights_of(wire_->other(), pool);
  status refusal;
  if (writes(op) ? !may.write : !may.read)
    refusal = failure{EACCES, format("%s may not %s pool %s: its access list is \"%s\"", wire_->other().principal.c_str(),
                                     writes(op) ? "write" : "read", pool.name.c_str(), pool.access.c_str())};
  else if ((request->head.flags & flag::ucx) != 0 && !uses_ucx(*request))
    refusal = failure{ENOTSUP, "this connection has no UCX transport"};
  else if ((op == opcode::alloc || op == opcode::lookup || goes_to_device(*request)) && !uses_ucx(*request) &&
           parts_.access.needs_private_arena(pool))
    refusal =
        failure{ENOTSUP, format("pool %s is not reached by shared memory: its settings forbid it, or not everybody who "
                                "maps the store's memory may read and write it",
                                pool.name.c_str())};
  else if (const char* reason = uses_ucx(*request) ? nullptr : why_not_mapped(op); reason != nullptr)
    refusal = failure{EACCES, format("pool %s is not reached by shared memory here: %s", pool.name.c_str(), reason)};
  else if (writes(op) && op != opcode::erase && request->head.value_bytes > store_protocol::kMaxValueBytes)
    refusal = failure{
        EFBIG, format("%llu bytes: longer than a value may be", static_cast<unsigned long long>(request->head.value_bytes))};
  if (refusal) refusal = admits(*request, key, writes(op));
  if (!refusal) return answer(request, refusal.error());  // its later data frames are dropped
  (op == opcode::put ? g_live_puts : op == opcode::get ? g_live_gets : g_live_others).add();
  switch (op) {
    case opcode::put:
      if (goes_to_device(*request)) return put_from_device(request, key);
      return (request->head.flags & flag::streamed) != 0 ? put_streamed(request, key) : put_whole(request, key, body);
    case opcode::get:
      return find_value(request, key, goes_to_device(*request) ? &session::send_to_device : &session::send_value);
    case opcode::alloc:
      return alloc(request, key);
    case opcode::lookup:
      return find_value(request, key, &session::send_extents);
    case opcode::erase:
      return erase(request, key);
    case opcode::stat:
      return stat(request, key);
    default:
      return answer(request, {EPROTO, format("%s is not a request", store_protocol::name_of(op))});
  }
}

// A grant ends when a change of the pool's list takes the right to write away.
bool session::may_still_write(std::uint32_t pool) const {
  const auto found = pools_.find(pool);
  return found != pools_.end() && parts_.access.rights_of(wire_->other(), found->second).write;
}

failure session::permission_lost(std::uint32_t pool) const {
  return {EACCES,
          format("%s may not write pool %u any more: its access list has changed", wire_->other().principal.c_str(), pool)};
}

status session::admits(const pending_request& request, std::string_view key, bool writes) {
  if (!request.fields.copy) return parts_.values.admits(request.head.pool_id, key, writes);
  if (!parts_.access.is_admin(wire_->other()))
    return failure{EACCES, format("%s may not write copies: a server of the cluster must be among the others' \"admins\"",
                                  wire_->other().principal.c_str())};
  return parts_.values.admits_copy(*request.fields.copy, engine_session_, request.head.pool_id, key, writes);
}

// Keeps the cluster's map from changing during a replicated change, which may have been admitted long ago.
std::shared_lock<std::shared_mutex> session::gate_of(const pending_request& request) {
  return request.fields.copy ? std::shared_lock(parts_.values.copies_gate()) : std::shared_lock<std::shared_mutex>();
}
status session::is_still_admitted(const pending_request& request, std::string_view key) {
  return request.fields.copy ? admits(request, key, true) : status();
}

// ---- Puts ----------------------------------------------------------------------------------------------------------------

void session::put_whole(const request_ptr& request, std::string_view key, std::string_view body) {
  if (room_queue_.empty() && try_put(request, key, body)) return;
  queue_for_room(key.size() + body.size(), [me = shared_from_this(), request, again_key = std::string(key),
                                            again = std::string(body)] { return me->try_put(request, again_key, again); });
}

// Returns false if there is no room now.
bool session::try_put(const request_ptr& request, std::string_view key, std::string_view body) {
  if ((request->head.flags & flag::patch) != 0)
    return answer(request, {EPROTO, "a part of a value is put in data frames"}), true;
  if (request->fields.crc && *request->fields.crc != request->head.body_crc)
    return answer(request, {EBADMSG, format("the value that arrived has checksum %08x, its writer says %08x",
                                            request->head.body_crc, *request->fields.crc)}),
           true;
  // The engine reports "no room" within the call, on this thread, while key and body are still in the buffer.
  struct call {
    std::thread::id caller = std::this_thread::get_id();
    bool running = true, no_room = false;
  };
  const auto now = std::make_shared<call>();
  auto ended = [me = shared_from_this(), request, now, size = body.size()](result<store::put_result> done) {
    if (done.code() == ENOSPC && now->caller == std::this_thread::get_id() && now->running && me->may_wait(*request)) {
      now->no_room = true;
      return;
    }
    me->run_on_home_thread([me, request, size, done = std::move(done)] {
      if (!done) return me->answer(request, done.error());
      me->parts_.counters.bytes(me->wire_->other().way, true, size);
      store_protocol::tail fields;
      fields.result = me->outcome_of(*done, size, me->wire_->other().way);
      me->answer(request, {}, std::move(fields));
    });
  };
  auto options = put_options_of(request->fields, parts_.values.request_group(request->head.pool_id, key));
  const auto gate = gate_of(*request);
  if (const status fine = is_still_admitted(*request, key); !fine) return answer(request, fine.error()), true;
  if (!body.empty()) options.known_crc = request->head.body_crc;  // verified against the body when the frame was parsed
  service_for(*request).put_async(request->head.pool_id, key, std::as_bytes(std::span(body)), options, std::move(ended));
  now->running = false;
  return !now->no_room;
}

result<store::grant> session::begin(const pending_request& request, std::string_view key, store::begin_options options,
                                    std::uint64_t& patch_at) {
  const auto pool = request.head.pool_id;
  std::uint64_t length = request.head.value_bytes;
  patch_at = 0;
  if ((request.head.flags & flag::patch) != 0) {
    const auto now = parts_.engine.stat(pool, key);
    if (!now && now.code() != ENOENT) return now.error();
    if (request.head.offset > store_protocol::kMaxValueBytes - length)
      return failure{EFBIG, "the part would end beyond the maximum size of a value"};
    patch_at = request.head.offset;
    length = std::max(patch_at + length, now ? now->length_bytes : 0);
    options.from_current = true;
  }
  if (const status may = may_begin(length); !may) return may.error();
  if (auto may = may_hold(length); !may) {
    account_->put_waited_ns = monotonic_ns();
    return may.error();
  }
  if (!request.fields.copy) options.owner = owner_of(request.fields);  // another server has admitted a copy
  options.request = request_of(request.fields);
  options.level = put_options_of(request.fields, 0).level;
  if (request.fields.only) {
    options.precondition = static_cast<store::condition>(request.fields.only->kind);
    options.expected_version = request.fields.only->version;
  }
  return parts_.engine.begin_put(engine_session_, pool, key, length, options);
}

// Returns true for a durable value that has waited long for room in memory: it goes to disk directly.
bool session::bypasses_memory(const pending_request& request) const {
  const auto pool = pools_.find(request.head.pool_id);
  const bool is_whole = (request.head.flags & (flag::patch | flag::ucx)) == 0;
  if (!is_whole || request.head.value_bytes <= kInlineBytes || pool == pools_.end()) return false;
  const auto level = put_options_of(request.fields, 0).level;
  const bool stays = (level == store::durability::pool_default ? pool->second.level : level) != store::durability::volatile_;
  return stays && parts_.values.takes_longer_than_memory() && has_waited(request);
}

void session::put_streamed(const request_ptr& request, std::string_view key) {
  if (uploads_.size() >= parts_.config.max_requests)
    return answer(request, {ENOSPC, format("%zu puts of this connection still send their bytes: end some of them first "
                                           "(max_requests)",
                                           uploads_.size())});
  const bool part = (request->head.flags & flag::patch) != 0;
  if (!part && request->head.value_bytes > parts_.engine.max_in_memory_bytes()) {
    if (parts_.values.takes_longer_than_memory()) return put_in_windows(request, key);
    return answer(request, {EFBIG, "a cluster's servers take values that fit into their memory tier (--arena)"});
  }
  auto one = std::make_shared<upload>();
  one->request = request;
  one->key = key;
  uploads_[request->head.request_id] = one;
  begin_upload(one);
}

// The upload's bytes follow, so the connection is not read while it waits for room. What this connection occupies
// itself then stays occupied: beside that, a value bypasses the memory tier if it may, and is refused otherwise.
void session::begin_upload(const std::shared_ptr<upload>& one) {
  const auto& request = one->request;
  const bool part = (request->head.flags & flag::patch) != 0;
  const bool has_others = uploads_.size() > 1 || !grants_.empty() || !ucx_grants_.empty();
  auto granted = begin(*request, one->key, {}, one->patch_at);
  if (granted.code() == ENOSPC && may_wait(*request)) {
    const bool may_bypass = !part && request->head.value_bytes > 0 && parts_.values.takes_longer_than_memory();
    if ((has_others && may_bypass) || bypasses_memory(*request)) {
      one->held_bytes = 2 * store::kWindowBytes;
      hold(one->held_bytes);
      return open_writer(one);
    }
    if (!has_others || !has_waited(*request))
      return wait_for_room([me = shared_from_this(), one] { me->begin_upload(one); });
  }
  if (!granted) return refuse_upload(one, granted.error());
  one->held_bytes = std::max(granted->length_bytes, kMinHeldBytes);
  hold(one->held_bytes);
  one->granted = *std::move(granted);
  one->base_version = one->granted.base_version;
  if (request->head.value_bytes != 0) return;
  uploads_.erase(request->head.request_id);
  upload_complete(one);
}

void session::upload_complete(const std::shared_ptr<upload>& one) {
  store::commit_options options;
  options.put = put_options_of(one->request->fields, parts_.values.request_group(one->request->head.pool_id, one->key));
  if ((one->request->head.flags & flag::patch) != 0 && options.put.precondition == store::condition::none) {
    // The value that supplied the rest must still be current.
    options.put.precondition = one->base_version != 0 ? store::condition::if_version : store::condition::if_absent;
    options.put.expected_version = one->base_version;
  } else if (one->request->fields.crc && *one->request->fields.crc != one->crc) {
    release_hold(std::exchange(one->held_bytes, 0));
    (void)parts_.engine.abort(engine_session_, one->granted.id);
    return answer(one->request, {EBADMSG, format("the value that arrived has checksum %08x, its writer says %08x", one->crc,
                                                 *one->request->fields.crc)});
  } else if (one->patch_at == 0 && one->granted.length_bytes == one->have_bytes) {
    options.take_crc = true;  // of frames that were verified as they arrived
    options.crc32c = one->crc;
  }
  const auto way = wire_->other().way;
  const std::uint64_t length = one->writer ? one->have_bytes : one->granted.length_bytes;
  auto committed = [me = shared_from_this(), one, way, length](result<store::put_result> done) {
    me->run_on_home_thread([me, one, way, length, done = std::move(done)] {
      me->release_hold(std::exchange(one->held_bytes, 0));
      if (!done) return me->answer(one->request, done.error());
      me->parts_.counters.bytes(way, true, one->have_bytes);
      store_protocol::tail fields;
      fields.result = me->outcome_of(*done, length, way);
      me->answer(one->request, {}, std::move(fields));
    });
  };
  if (!may_still_write(one->request->head.pool_id)) {
    if (!one->writer) (void)parts_.engine.abort(engine_session_, one->granted.id);
    one->writer.reset();
    return committed(permission_lost(one->request->head.pool_id));
  }
  if (one->writer) return one->writer->commit_async(options.put, one->crc, std::move(committed));
  const auto gate = gate_of(*one->request);
  if (const status fine = is_still_admitted(*one->request, one->key); !fine) {
    (void)parts_.engine.abort(engine_session_, one->granted.id);
    return committed(fine.error());
  }
  service_for(*one->request)
      .commit_async(engine_session_, one->granted.id, one->request->head.pool_id, one->key, options, std::move(committed));
}

void session::alloc(const request_ptr& request, std::string_view key) {
  const auto granted = std::make_shared<store::grant>();
  const auto patch_at = std::make_shared<std::uint64_t>(0);
  until_room(
      request,
      [this, request, granted, patch_at, key = std::string(key)]() -> status {
        auto begun = begin(*request, key, {}, *patch_at);
        if (begun.code() == ENOSPC && bypasses_memory(*request)) return failure{ENOTSUP, begun.error().message};
        if (!begun) return begun.error();
        *granted = *std::move(begun);
        return {};
      },
      [me = shared_from_this(), request, granted, patch_at, key = std::string(key)](const status& begun) {
        if (!begun) return me->answer(request, begun.error());
        if (me->uses_ucx(*request)) return me->receive_by_ucx(request, *granted, *patch_at, key);
        if ((request->head.flags & flag::ucx) != 0) {  // the transport broke while the request waited for room
          (void)me->parts_.engine.abort(me->engine_session_, granted->id);
          return me->answer(request, {ECONNABORTED, "the UCX transport broke"});
        }
        if (me->parts_.engine.is_in_private_arena(granted->segments)) {
          (void)me->parts_.engine.abort(me->engine_session_, granted->id);
          return me->answer(request, {ENOTSUP, "the pool's values do not lie in memory that clients map"});
        }
        me->grants_[granted->id] = {granted->length_bytes, request->head.pool_id, key};
        me->hold(std::max(granted->length_bytes, kMinHeldBytes));
        store_protocol::tail fields;
        fields.token = granted->id;
        if (const auto pool = me->pools_.find(request->head.pool_id); pool != me->pools_.end())
          fields.level = pool->second.level;
        fields.extents = extents_of(granted->segments);
        fields.result.emplace().version = granted->base_version;
        fields.result->value_bytes = granted->length_bytes;
        me->answer(request, {}, std::move(fields));
      });
}

void session::arrived(const request_ptr& request) {
  const std::uint64_t token = request->fields.token.value_or(0);
  if (!grants_.contains(token)) return answer(request, {EBADF, "no such grant: it was committed, aborted, or never given"});
  answer(request,
         parts_.engine.arrived(engine_session_, token, request->head.value_bytes, put_options_of(request->fields, 0).level));
}

void session::commit(const request_ptr& request) {
  const std::uint64_t token = request->fields.token.value_or(0);
  if ((request->head.flags & flag::ucx) != 0) {  // the client has closed its UCX transport
    leave_ucx();
    return answer(request, status{});
  }
  if (ucx_grants_.contains(token))
    return request->head.op == opcode::abort ? abort_ucx_grant(request, token) : commit_ucx_grant(request, token);
  const auto found = grants_.find(token);
  if (found == grants_.end()) return answer(request, {EBADF, "no such grant: it was committed, aborted, or never given"});
  const shm_grant grant = std::move(found->second);
  const std::uint64_t bytes = grant.bytes;
  grants_.erase(found);
  if (request->head.op == opcode::abort || !may_still_write(grant.pool)) {
    release_hold(std::max(bytes, kMinHeldBytes));
    const status aborted = parts_.engine.abort(engine_session_, token);
    return answer(request, request->head.op == opcode::abort ? aborted : status(permission_lost(grant.pool)));
  }
  store::commit_options options;
  options.put = put_options_of(request->fields, parts_.values.request_group(grant.pool, grant.key));
  if (request->fields.crc) {
    options.take_crc = true;
    options.crc32c = *request->fields.crc;
  }
  parts_.values.commit_async(engine_session_, token, grant.pool, grant.key, options,
                             [me = shared_from_this(), request, bytes](result<store::put_result> done) {
                               me->run_on_home_thread([me, request, bytes, done = std::move(done)] {
                                 me->release_hold(std::max(bytes, kMinHeldBytes));
                                 if (!done) return me->answer(request, done.error());
                                 me->parts_.counters.bytes(store_protocol::path::shm_direct, true, bytes);
                                 store_protocol::tail fields;
                                 fields.result = me->outcome_of(*done, bytes, store_protocol::path::shm_direct);
                                 me->answer(request, {}, std::move(fields));
                               });
                             });
}

void session::erase(const request_ptr& request, std::string_view key) {
  const auto given = put_options_of(request->fields, parts_.values.request_group(request->head.pool_id, key));
  store::erase_options options;
  options.level = given.level;
  const bool is_copy = request->fields.copy.has_value();
  options.precondition =
      given.precondition == store::condition::none && !is_copy ? store::condition::if_present : given.precondition;
  options.copy = given.copy;
  options.expected_version = given.expected_version;
  options.request = given.request;
  const auto gate = gate_of(*request);
  if (const status fine = is_still_admitted(*request, key); !fine) return answer(request, fine.error());
  service_for(*request).erase_async(request->head.pool_id, key, options,
                                    [me = shared_from_this(), request](result<store::erase_result> done) {
                                      me->run_on_home_thread([me, request, done = std::move(done)] {
                                        if (!done) return me->answer(request, done.error());
                                        store_protocol::tail fields;
                                        fields.result.emplace().version = done->version;
                                        fields.result->reached = done->reached;
                                        fields.result->way = me->wire_->other().way;
                                        fields.result->repeated = done->repeated;
                                        fields.result->copies = static_cast<std::uint8_t>(done->copies);
                                        me->answer(request, {}, std::move(fields));
                                      });
                                    });
}

// ---- Gets ----------------------------------------------------------------------------------------------------------------

void session::find_value(const request_ptr& request, std::string_view key,
                         void (session::*handler)(const request_ptr&, const store::pinned_value&)) {
  if (lets_puts_pass(*request)) return look_up_later(request, std::string(key), handler);
  store::get_options options;
  options.verify = (request->head.flags & flag::verify) != 0;
  // A client that can read pieces gets the value without loading it into memory.
  options.or_reader = !wants_pin(*request);
  options.offset_bytes = request->head.offset;
  options.length_bytes = request->head.value_bytes;
  const bool may = !request->bypasses_memory && may_hold(0).ok();
  if (!may && wants_pin(*request))
    return answer(request, {ENOTSUP, wire_->other().principal + " holds as much of the memory tier as it may"});
  options.bypass_memory = !may;
  // Does not wait for room, because other values pass through the engine's threads too.
  service_for(*request).lookup_async(
      engine_session_, request->head.pool_id, key, options,
      [me = shared_from_this(), request, handler, name = std::string(key)](result<store::pinned_value> found) {
        me->run_on_home_thread([me, request, handler, name, found = std::move(found)] {
          if (found.code() == ENOSPC && me->retry_lookup(request, name, handler)) return;
          if (found && me->holds_too_much(request, *found)) return me->find_value(request, name, handler);
          const bool by_socket = found.code() == ENOSPC && wants_pin(*request);
          if (by_socket) return me->answer(request, {ENOTSUP, found.error().message});
          if (!found) return me->answer(request, found.error());
          (me.get()->*handler)(request, *found);
        });
      });
}

// Values read from disk arrive one by one, and all were requested when the principal held nothing.
bool session::holds_too_much(const request_ptr& request, const store::pinned_value& value) {
  const bool stays_pinned = value.pin != 0 && (wants_pin(*request) || value.info.length_bytes > kInlineBytes);
  if (!stays_pinned || request->bypasses_memory || may_hold(value.info.length_bytes)) return false;
  let_go({&value.pin, 1});
  request->bypasses_memory = true;
  return true;
}

// There is no room in memory now. A client that asked for mapped memory is soon sent to the socket, where values bypass
// memory.
bool session::retry_lookup(const request_ptr& request, const std::string& key,
                           void (session::*handler)(const request_ptr&, const store::pinned_value&)) {
  constexpr auto kTimeout = std::chrono::milliseconds(20);
  const auto began = clock::time_point(std::chrono::nanoseconds(request->began_ns));
  const auto most = wants_pin(*request) ? std::min(request->deadline, began + kTimeout) : request->deadline;
  if (closed_ || clock::now() + kTimeout / 10 >= most || wire_->has_left()) return false;
  ++parts_.counters.waits_for_room;
  look_up_later(request, key, handler);
  return true;
}

void session::look_up_later(const request_ptr& request, const std::string& key,
                            void (session::*handler)(const request_ptr&, const store::pinned_value&)) {
  retry_later([me = shared_from_this(), request, key, handler] {
    if (me->closed_) return me->answer(request, {ECONNABORTED, "the connection is gone"});
    me->find_value(request, key, handler);
  });
}

void session::send_value(const request_ptr& request, const store::pinned_value& value) {
  if (value.reader) return send_in_windows(request, value);
  const std::uint64_t whole = value.info.length_bytes, first = request->head.offset;
  const auto pin = value.pin;
  if (first > whole) {
    let_go({&pin, 1});
    return answer(request, {EINVAL, format("offset %llu is beyond the value's end (%llu bytes)",
                                           static_cast<unsigned long long>(first), static_cast<unsigned long long>(whole))});
  }
  std::uint64_t left = std::min(request->head.value_bytes, whole - first), skip = first;
  if ((request->head.flags & flag::warm) != 0) left = 0;
  std::vector<std::span<const std::byte>> pieces;
  const std::uint64_t bytes = left;
  for (const auto& one : value.segments) {
    const std::uint64_t begin = std::min(skip, one.size_bytes), part = std::min(left, one.size_bytes - begin);
    skip -= begin;
    left -= part;
    if (part > 0) pieces.emplace_back(parts_.engine.arena().base + one.offset_bytes + begin, part);
  }
  const auto way = wire_->other().way;
  store_protocol::tail fields;
  fields.result = outcome_of(value.info);
  if (uses_ucx(*request)) return send_by_ucx(request, std::move(fields), pin, pieces, bytes);
  parts_.counters.bytes(way, false, bytes);
  if (bytes <= kInlineBytes) {
    std::string body;
    body.reserve(bytes);
    for (const auto& one : pieces) body.append(reinterpret_cast<const char*>(one.data()), one.size());
    let_go({&pin, 1});
    return answer(request, {}, std::move(fields), body, bytes);
  }
  answer(request, {}, std::move(fields), {}, bytes, flag::streamed);
  if (closed_) return let_go({&pin, 1});
  download out;
  out.frame.request_id = request->head.request_id;
  out.frame.pool_id = request->head.pool_id;
  out.pieces = std::move(pieces);
  out.left_bytes = bytes;
  hold_pin(pin, whole);
  out.finished = [this, pin] { let_go({&pin, 1}); };
  out_.add(std::move(out));
  if (!parsing_) out_.flush(shared_from_this());
}

// The arena holds the value, and the client reads it there.
void session::send_extents(const request_ptr& request, const store::pinned_value& value) {
  if (parts_.engine.is_in_private_arena(value.segments)) {  // its pool's list has just changed
    let_go({&value.pin, 1});
    return answer(request, {ENOTSUP, "the value does not lie in memory that clients map"});
  }
  parts_.counters.bytes(store_protocol::path::shm_direct, false, value.info.length_bytes);
  store_protocol::tail fields;
  fields.result = outcome_of(value.info);
  fields.result->way = store_protocol::path::shm_direct;
  fields.token = value.pin;
  fields.extents = extents_of(value.segments);
  hold_pin(value.pin, value.info.length_bytes, true);
  answer(request, {}, std::move(fields), {}, value.info.length_bytes);
}

void session::stat(const request_ptr& request, std::string_view key) {
  service_for(*request).stat_async(request->head.pool_id, key,
                                   [me = shared_from_this(), request](result<store::value_info> found) {
                                     me->run_on_home_thread([me, request, found = std::move(found)] {
                                       if (!found) return me->answer(request, found.error());
                                       store_protocol::tail fields;
                                       fields.result = me->outcome_of(*found);
                                       me->answer(request, {}, std::move(fields), {}, found->length_bytes);
                                     });
                                   });
}

void session::let_go(std::span<const std::uint64_t> pins) {
  for (const auto pin : pins) {
    (void)parts_.engine.unpin(engine_session_, pin);
    if (const auto mine = pinned_.extract(pin)) pinned_bytes_ -= mine.mapped().bytes;
  }
  count_memory();
}

// Clients can guess the numbers of others' pins. Unpinning one would reuse memory that a transfer still reads.
void session::take_back(const std::vector<std::uint64_t>& pins) {
  for (const auto pin : pins) {
    const auto found = pinned_.find(pin);
    if (found != pinned_.end() && found->second.is_leased) let_go({&pin, 1});
  }
}

}  // namespace pl::store_server
