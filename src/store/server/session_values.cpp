// SPDX-License-Identifier: Apache-2.0
// Operations on values: each takes a request, has the engine do it, and answers once.
#include <algorithm>
#include <asio/post.hpp>
#include <thread>

#include "base/clock.hpp"
#include "base/live_counter.hpp"
#include "base/text.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {
namespace {

// For `peerlane top`; metrics.hpp has what a monitoring system asks for.
live_counter g_live_puts{"store.puts"};
live_counter g_live_gets{"store.gets"};
live_counter g_live_others{"store.other_requests"};

using store_wire::opcode;
namespace flag = store_wire::flag;
constexpr std::uint64_t kInlineBytes = 64 << 10;  // values up to here are sent within the answer

static_assert(static_cast<int>(store::condition::if_absent) == static_cast<int>(store_wire::condition::if_absent));
static_assert(static_cast<int>(store::condition::if_present) == static_cast<int>(store_wire::condition::if_present));
static_assert(static_cast<int>(store::condition::if_version) == static_cast<int>(store_wire::condition::if_version));

}  // namespace

store::put_options put_options_of(const store_wire::tail& fields, std::uint16_t request_group) {
  store::put_options out;
  if (fields.level) out.level = *fields.level;
  if (fields.only) {
    out.when = static_cast<store::condition>(fields.only->kind);
    out.expected_version = fields.only->version;
  }
  if (fields.user_flags) out.user_flags = *fields.user_flags;
  if (fields.who) out.request = {fields.who->client, fields.who->number, request_group};
  if (fields.copy) out.copy = {fields.copy->version, fields.copy->replaces};
  return out;
}

namespace {

std::vector<store_wire::extent> extents_of(const std::vector<store::segment>& segments) {
  std::vector<store_wire::extent> out;
  for (const auto& one : segments) out.push_back({one.offset_bytes, one.size_bytes});
  return out;
}

bool writes(opcode op) { return op == opcode::put || op == opcode::alloc || op == opcode::erase; }

}  // namespace

store_wire::outcome session::outcome_of(const store::put_result& done, std::uint64_t bytes, store_wire::path way) const {
  store_wire::outcome out;
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

store_wire::outcome session::outcome_of(const store::value_info& info) const {
  store_wire::outcome out;
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

void session::dispatch(const request_ptr& what, std::string_view key, std::string_view body) {
  if (dispatch_other(what, key, body)) return;
  const auto pool = pools_.find(what->head.pool_id);
  if (pool == pools_.end())
    return answer(what, {ENXIO, format("pool %u is not open on this connection: open it by its name", what->head.pool_id)});
  dispatch_value(what, pool->second, key, body);
}

// Why a request may not be about mapped memory; null: it may, or is not.
const char* session::why_not_mapped(opcode op) const {
  if (op != opcode::alloc && op != opcode::lookup) return nullptr;
  if (mapped_ == mapping::none) return "the arena is not attached";
  if (op == opcode::alloc && mapped_ == mapping::read) return "the arena is attached to read only";
  return nullptr;
}

void session::dispatch_value(const request_ptr& what, const pool_policy& pool, std::string_view key, std::string_view body) {
  const opcode op = what->head.op;
  const rights may = parts_.access.rights_of(wire_->other(), pool);
  status refusal;
  if (writes(op) ? !may.write : !may.read)
    refusal = failure{EACCES, format("%s may not %s pool %s: its access list is \"%s\"", wire_->other().principal.c_str(),
                                     writes(op) ? "write" : "read", pool.name.c_str(), pool.access.c_str())};
  else if ((what->head.flags & flag::lane) != 0 && !by_lane(*what))
    refusal = failure{ENOTSUP, "this connection has no UCX lane"};
  else if ((op == opcode::alloc || op == opcode::lookup) && !by_lane(*what) && parts_.access.keeps_apart(pool))
    refusal =
        failure{ENOTSUP, format("pool %s is not reached by shared memory: its settings forbid it, or not everybody who "
                                "maps the store's memory may read and write it",
                                pool.name.c_str())};
  else if (const char* why = by_lane(*what) ? nullptr : why_not_mapped(op); why != nullptr)
    refusal = failure{EACCES, format("pool %s is not reached by shared memory here: %s", pool.name.c_str(), why)};
  else if (writes(op) && op != opcode::erase &&
           (what->head.value_bytes > store_wire::kMaxValueBytes ||
            granted_bytes_ + held_bytes(what->head.value_bytes) >
                std::max(parts_.config.max_request_bytes, held_bytes(what->head.value_bytes))))
    refusal = failure{what->head.value_bytes > store_wire::kMaxValueBytes ? EFBIG : ENOSPC,
                      format("%llu bytes: more than this connection may have under way",
                             static_cast<unsigned long long>(what->head.value_bytes))};
  if (refusal) refusal = admits(*what, key, writes(op));
  if (!refusal) return answer(what, refusal.error());  // data frames that follow belong to nothing and are thrown away
  (op == opcode::put ? g_live_puts : op == opcode::get ? g_live_gets : g_live_others).add();
  switch (op) {
    case opcode::put:
      return (what->head.flags & flag::streamed) != 0 ? put_streamed(what, key) : put_whole(what, key, body);
    case opcode::get:
      return look_up(what, key, &session::send_value);
    case opcode::alloc:
      return alloc(what, key);
    case opcode::lookup:
      return look_up(what, key, &session::send_extents);
    case opcode::erase:
      return erase(what, key);
    case opcode::stat:
      return stat(what, key);
    default:
      return answer(what, {EPROTO, format("%s is no request", store_wire::name_of(op))});
  }
}

// A grant is no right that outlives the pool's list.
bool session::may_still_write(std::uint32_t pool) const {
  const auto found = pools_.find(pool);
  return found != pools_.end() && parts_.access.rights_of(wire_->other(), found->second).write;
}

failure session::no_right_any_more(std::uint32_t pool) const {
  return {EACCES,
          format("%s may not write pool %u any more: its access list has changed", wire_->other().principal.c_str(), pool)};
}

status session::admits(const request& what, std::string_view key, bool writes) {
  if (!what.fields.copy) return parts_.values.admits(what.head.pool_id, key, writes);
  if (!parts_.access.is_admin(wire_->other()))
    return failure{EACCES, format("%s may not write copies: a server of the cluster must be among the others' \"admins\"",
                                  wire_->other().principal.c_str())};
  return parts_.values.admits_copy(*what.fields.copy, engine_session_, what.head.pool_id, key, writes);
}

// A copy's change on its way to the engine: it was admitted when it came, which may be long ago.
std::shared_lock<std::shared_mutex> session::gate_of(const request& what) {
  return what.fields.copy ? std::shared_lock(parts_.values.copies_gate()) : std::shared_lock<std::shared_mutex>();
}
status session::is_still_admitted(const request& what, std::string_view key) {
  return what.fields.copy ? admits(what, key, true) : status();
}

// ---- Puts ----------------------------------------------------------------------------------------------------------------

void session::put_whole(const request_ptr& what, std::string_view key, std::string_view body) {
  if ((what->head.flags & flag::patch) != 0) return answer(what, {EPROTO, "a part of a value is put in data frames"});
  if (what->fields.crc && *what->fields.crc != what->head.body_crc)
    return answer(what, {EBADMSG, format("the value that arrived has checksum %08x, its writer says %08x",
                                         what->head.body_crc, *what->fields.crc)});
  // "No room" is told within the call, on this thread, while key and body are still in the buffer.
  struct call {
    std::thread::id caller = std::this_thread::get_id();
    bool running = true, no_room = false;
  };
  const auto now = std::make_shared<call>();
  auto ended = [me = shared_from_this(), what, now, size = body.size()](result<store::put_result> done) {
    if (done.code() == ENOSPC && now->caller == std::this_thread::get_id() && now->running && me->may_wait(*what)) {
      now->no_room = true;
      return;
    }
    me->here([me, what, size, done = std::move(done)] {
      if (!done) return me->answer(what, done.error());
      me->parts_.counters.bytes(me->wire_->other().way, true, size);
      store_wire::tail fields;
      fields.result = me->outcome_of(*done, size, me->wire_->other().way);
      me->answer(what, {}, std::move(fields));
    });
  };
  auto options = put_options_of(what->fields, parts_.values.request_group(what->head.pool_id, key));
  const auto gate = gate_of(*what);
  if (const status fine = is_still_admitted(*what, key); !fine) return answer(what, fine.error());
  if (!body.empty()) options.known_crc = what->head.body_crc;  // held against the body when the frame was taken apart
  door_of(*what).put_async(what->head.pool_id, key, std::as_bytes(std::span(body)), options, std::move(ended));
  now->running = false;
  if (now->no_room)
    wait_for_room([me = shared_from_this(), what, again_key = std::string(key), again = std::string(body)] {
      me->put_whole(what, again_key, again);
    });
}

result<store::grant> session::begin(const request& what, std::string_view key, store::begin_options options,
                                    std::uint64_t& patch_at) {
  const auto pool = what.head.pool_id;
  std::uint64_t length = what.head.value_bytes;
  patch_at = 0;
  if ((what.head.flags & flag::patch) != 0) {
    const auto now = parts_.engine.stat(pool, key);
    if (!now && now.code() != ENOENT) return now.error();
    if (what.head.offset > store_wire::kMaxValueBytes - length)
      return failure{EFBIG, "the part would end behind the longest value"};
    patch_at = what.head.offset;
    length = std::max(patch_at + length, now ? now->length_bytes : 0);
    options.from_current = true;
  }
  if (auto may = may_hold(length); !may) return may.error();
  return parts_.engine.begin_put(engine_session_, pool, key, length, options);
}

// A durable value that has waited for room in memory for a while goes to the disk without it.
bool session::goes_past_memory(const request& what) const {
  constexpr std::uint64_t kPatienceNs = 100'000'000;
  const auto pool = pools_.find(what.head.pool_id);
  const bool is_whole = (what.head.flags & (flag::patch | flag::lane)) == 0;
  if (!is_whole || what.head.value_bytes <= kInlineBytes || pool == pools_.end()) return false;
  const auto level = put_options_of(what.fields, 0).level;
  const bool stays = (level == store::durability::pool_default ? pool->second.level : level) != store::durability::volatile_;
  return stays && parts_.values.takes_longer_than_memory() && monotonic_ns() - what.began_ns > kPatienceNs;
}

void session::put_streamed(const request_ptr& what, std::string_view key) {
  const bool part = (what->head.flags & flag::patch) != 0;
  if (!part && what->head.value_bytes > parts_.engine.most_in_memory_bytes()) {
    if (parts_.values.takes_longer_than_memory()) return put_in_windows(what, key);
    return answer(what, {EFBIG, "a cluster's servers take values that fit into their memory tier (--arena)"});
  }
  auto one = std::make_shared<upload>();
  one->what = what;
  one->key = key;
  // To wait here would keep the bytes of the others away that this connection is sending: past the memory tier it goes on.
  const bool waits_for_itself = !uploads_.empty() && !part && what->head.value_bytes > 0 && may_wait(*what) &&
                                parts_.values.takes_longer_than_memory();
  uploads_[what->head.request_id] = one;
  until_room(
      what,
      [this, one, what, waits_for_itself]() -> status {
        auto granted = begin(*what, one->key, {}, one->patch_at);
        if (granted.code() == ENOSPC && (waits_for_itself || goes_past_memory(*what))) return {};
        if (!granted) return granted.error();
        one->held_bytes = granted->length_bytes;
        hold(one->held_bytes);
        one->granted = *std::move(granted);
        one->base_version = one->granted.base_version;
        return {};
      },
      [me = shared_from_this(), one, what](const status& begun) {
        if (!begun) {
          one->refused = true;
          me->uploads_.erase(what->head.request_id);
          return me->answer(what, begun.error());
        }
        if (one->granted.id == 0) {
          one->held_bytes = 2 * store::kWindowBytes;
          me->hold(one->held_bytes);
          return me->open_writer(one);
        }
        if (what->head.value_bytes == 0) {
          me->uploads_.erase(what->head.request_id);
          me->upload_complete(one);
        }
      });
}

void session::upload_complete(const std::shared_ptr<upload>& one) {
  store::commit_options options;
  options.put = put_options_of(one->what->fields, parts_.values.request_group(one->what->head.pool_id, one->key));
  if ((one->what->head.flags & flag::patch) != 0 && options.put.when == store::condition::none) {
    // What the rest of the value was taken from must still be the value.
    options.put.when = one->base_version != 0 ? store::condition::if_version : store::condition::if_absent;
    options.put.expected_version = one->base_version;
  } else if (one->what->fields.crc && *one->what->fields.crc != one->crc) {
    let_hold_go(std::exchange(one->held_bytes, 0));
    (void)parts_.engine.abort(engine_session_, one->granted.id);
    return answer(one->what, {EBADMSG, format("the value that arrived has checksum %08x, its writer says %08x", one->crc,
                                              *one->what->fields.crc)});
  } else if (one->patch_at == 0 && one->granted.length_bytes == one->have_bytes) {
    options.take_crc = true;  // of frames that were checked one by one as they came
    options.crc32c = one->crc;
  }
  const auto way = wire_->other().way;
  const std::uint64_t length = one->writer ? one->have_bytes : one->granted.length_bytes;
  auto committed = [me = shared_from_this(), one, way, length](result<store::put_result> done) {
    me->here([me, one, way, length, done = std::move(done)] {
      me->let_hold_go(std::exchange(one->held_bytes, 0));
      if (!done) return me->answer(one->what, done.error());
      me->parts_.counters.bytes(way, true, one->have_bytes);
      store_wire::tail fields;
      fields.result = me->outcome_of(*done, length, way);
      me->answer(one->what, {}, std::move(fields));
    });
  };
  if (!may_still_write(one->what->head.pool_id)) {
    if (!one->writer) (void)parts_.engine.abort(engine_session_, one->granted.id);
    one->writer.reset();
    return committed(no_right_any_more(one->what->head.pool_id));
  }
  if (one->writer) return one->writer->commit_async(options.put, one->crc, std::move(committed));
  const auto gate = gate_of(*one->what);
  if (const status fine = is_still_admitted(*one->what, one->key); !fine) {
    (void)parts_.engine.abort(engine_session_, one->granted.id);
    return committed(fine.error());
  }
  door_of(*one->what)
      .commit_async(engine_session_, one->granted.id, one->what->head.pool_id, one->key, options, std::move(committed));
}

void session::alloc(const request_ptr& what, std::string_view key) {
  const auto granted = std::make_shared<store::grant>();
  const auto patch_at = std::make_shared<std::uint64_t>(0);
  until_room(
      what,
      [this, what, granted, patch_at, key = std::string(key)]() -> status {
        auto begun = begin(*what, key, {}, *patch_at);
        if (begun.code() == ENOSPC && goes_past_memory(*what)) return failure{ENOTSUP, begun.error().message};
        if (!begun) return begun.error();
        *granted = *std::move(begun);
        return {};
      },
      [me = shared_from_this(), what, granted, patch_at, key = std::string(key)](const status& begun) {
        if (!begun) return me->answer(what, begun.error());
        if (me->by_lane(*what)) return me->receive_by_lane(what, *granted, *patch_at, key);
        if ((what->head.flags & flag::lane) != 0) {  // it broke while this waited for room
          (void)me->parts_.engine.abort(me->engine_session_, granted->id);
          return me->answer(what, {ECONNABORTED, "the UCX lane broke"});
        }
        if (me->parts_.engine.is_apart(granted->segments)) {
          (void)me->parts_.engine.abort(me->engine_session_, granted->id);
          return me->answer(what, {ENOTSUP, "the pool's values do not lie in memory that clients map"});
        }
        me->grants_[granted->id] = {granted->length_bytes, what->head.pool_id, key};
        me->hold(granted->length_bytes);
        store_wire::tail fields;
        fields.token = granted->id;
        if (const auto pool = me->pools_.find(what->head.pool_id); pool != me->pools_.end())
          fields.level = pool->second.level;
        fields.extents = extents_of(granted->segments);
        fields.result.emplace().version = granted->base_version;
        fields.result->value_bytes = granted->length_bytes;
        me->answer(what, {}, std::move(fields));
      });
}

void session::arrived(const request_ptr& what) {
  const std::uint64_t token = what->fields.token.value_or(0);
  if (!grants_.contains(token)) return answer(what, {EBADF, "no such grant: it was committed, aborted, or never given"});
  answer(what, parts_.engine.arrived(engine_session_, token, what->head.value_bytes, put_options_of(what->fields, 0).level));
}

void session::commit(const request_ptr& what) {
  const std::uint64_t token = what->fields.token.value_or(0);
  if ((what->head.flags & flag::lane) != 0) {  // the client has done with its lane
    leave_lane();
    return answer(what, status{});
  }
  if (lane_grants_.contains(token))
    return what->head.op == opcode::abort ? abort_lane_grant(what, token) : commit_lane_grant(what, token);
  const auto found = grants_.find(token);
  if (found == grants_.end()) return answer(what, {EBADF, "no such grant: it was committed, aborted, or never given"});
  const shm_grant grant = std::move(found->second);
  const std::uint64_t bytes = grant.bytes;
  grants_.erase(found);
  if (what->head.op == opcode::abort || !may_still_write(grant.pool)) {
    let_hold_go(bytes);
    const status aborted = parts_.engine.abort(engine_session_, token);
    return answer(what, what->head.op == opcode::abort ? aborted : status(no_right_any_more(grant.pool)));
  }
  store::commit_options options;
  options.put = put_options_of(what->fields, parts_.values.request_group(grant.pool, grant.key));
  if (what->fields.crc) {
    options.take_crc = true;
    options.crc32c = *what->fields.crc;
  }
  parts_.values.commit_async(engine_session_, token, grant.pool, grant.key, options,
                             [me = shared_from_this(), what, bytes](result<store::put_result> done) {
                               me->here([me, what, bytes, done = std::move(done)] {
                                 me->let_hold_go(bytes);
                                 if (!done) return me->answer(what, done.error());
                                 me->parts_.counters.bytes(store_wire::path::shm_direct, true, bytes);
                                 store_wire::tail fields;
                                 fields.result = me->outcome_of(*done, bytes, store_wire::path::shm_direct);
                                 me->answer(what, {}, std::move(fields));
                               });
                             });
}

void session::erase(const request_ptr& what, std::string_view key) {
  const auto given = put_options_of(what->fields, parts_.values.request_group(what->head.pool_id, key));
  store::erase_options options;
  options.level = given.level;
  const bool is_copy = what->fields.copy.has_value();
  options.when = given.when == store::condition::none && !is_copy ? store::condition::if_present : given.when;
  options.copy = given.copy;
  options.expected_version = given.expected_version;
  options.request = given.request;
  const auto gate = gate_of(*what);
  if (const status fine = is_still_admitted(*what, key); !fine) return answer(what, fine.error());
  door_of(*what).erase_async(what->head.pool_id, key, options,
                             [me = shared_from_this(), what](result<store::erase_result> done) {
                               me->here([me, what, done = std::move(done)] {
                                 if (!done) return me->answer(what, done.error());
                                 store_wire::tail fields;
                                 fields.result.emplace().version = done->version;
                                 fields.result->reached = done->reached;
                                 fields.result->way = me->wire_->other().way;
                                 fields.result->repeated = done->repeated;
                                 fields.result->copies = static_cast<std::uint8_t>(done->copies);
                                 me->answer(what, {}, std::move(fields));
                               });
                             });
}

// ---- Gets ----------------------------------------------------------------------------------------------------------------

void session::look_up(const request_ptr& what, std::string_view key,
                      void (session::*then)(const request_ptr&, const store::pinned_value&)) {
  store::get_options options;
  options.verify = (what->head.flags & flag::verify) != 0;
  // Whoever can read pieces of the value gets it without its being in memory.
  options.or_reader = what->head.op == opcode::get;
  options.offset_bytes = what->head.offset;
  options.length_bytes = what->head.value_bytes;
  const bool may = may_hold(0).ok();
  if (!may && what->head.op == opcode::lookup) return answer(what, {ENOTSUP, may_hold(0).error().message});
  options.past_memory = !may;
  // (the engine's threads wait for nobody's room: others' values come through them)
  door_of(*what).lookup_async(
      engine_session_, what->head.pool_id, key, options,
      [me = shared_from_this(), what, then, name = std::string(key)](result<store::pinned_value> found) {
        me->here([me, what, then, name, found = std::move(found)] {
          if (found.code() == ENOSPC && me->look_up_again(what, name, then)) return;
          const bool by_socket = found.code() == ENOSPC && what->head.op == opcode::lookup;
          if (by_socket) return me->answer(what, {ENOTSUP, found.error().message});
          if (!found) return me->answer(what, found.error());
          (me.get()->*then)(what, *found);
        });
      });
}

// No room in memory now. Who asked for mapped memory is soon sent to the socket, where values are read past it.
bool session::look_up_again(const request_ptr& what, const std::string& key,
                            void (session::*then)(const request_ptr&, const store::pinned_value&)) {
  constexpr auto kPatience = std::chrono::milliseconds(20);
  const auto began = clock::time_point(std::chrono::nanoseconds(what->began_ns));
  const auto most = what->head.op == opcode::lookup ? std::min(what->deadline, began + kPatience) : what->deadline;
  if (closed_ || clock::now() + kPatience / 10 >= most || wire_->has_left()) return false;
  ++parts_.counters.waits_for_room;
  retry_later([me = shared_from_this(), what, key, then] {
    if (me->closed_) return me->answer(what, {ECONNABORTED, "the connection is gone"});
    me->look_up(what, key, then);
  });
  return true;
}

void session::send_value(const request_ptr& what, const store::pinned_value& value) {
  if (value.reader) return send_in_windows(what, value);
  const std::uint64_t whole = value.info.length_bytes, from = what->head.offset;
  const auto pin = value.pin;
  if (from > whole) {
    let_go({&pin, 1});
    return answer(what, {EINVAL, format("offset %llu lies behind the value's end (%llu bytes)",
                                        static_cast<unsigned long long>(from), static_cast<unsigned long long>(whole))});
  }
  std::uint64_t left = std::min(what->head.value_bytes, whole - from), skip = from;
  if ((what->head.flags & flag::warm) != 0) left = 0;
  std::vector<std::span<const std::byte>> pieces;
  const std::uint64_t bytes = left;
  for (const auto& one : value.segments) {
    const std::uint64_t begin = std::min(skip, one.size_bytes), part = std::min(left, one.size_bytes - begin);
    skip -= begin;
    left -= part;
    if (part > 0) pieces.emplace_back(parts_.engine.arena().base + one.offset_bytes + begin, part);
  }
  const auto way = wire_->other().way;
  store_wire::tail fields;
  fields.result = outcome_of(value.info);
  if (by_lane(*what)) return send_by_lane(what, std::move(fields), pin, pieces, bytes);
  parts_.counters.bytes(way, false, bytes);
  if (bytes <= kInlineBytes) {
    std::string body;
    body.reserve(bytes);
    for (const auto& one : pieces) body.append(reinterpret_cast<const char*>(one.data()), one.size());
    let_go({&pin, 1});
    return answer(what, {}, std::move(fields), body, bytes);
  }
  answer(what, {}, std::move(fields), {}, bytes, flag::streamed);
  if (closed_) return let_go({&pin, 1});
  download out;
  out.frame.request_id = what->head.request_id;
  out.frame.pool_id = what->head.pool_id;
  out.pieces = std::move(pieces);
  out.left_bytes = bytes;
  hold_pin(pin, whole);
  out.finished = [this, pin] { let_go({&pin, 1}); };
  out_.add(std::move(out));
  if (!parsing_) out_.flush(shared_from_this());
}

// The arena holds the value, and the client reads it there.
void session::send_extents(const request_ptr& what, const store::pinned_value& value) {
  if (parts_.engine.is_apart(value.segments)) {  // its pool's list has changed just now
    let_go({&value.pin, 1});
    return answer(what, {ENOTSUP, "the value does not lie in memory that clients map"});
  }
  parts_.counters.bytes(store_wire::path::shm_direct, false, value.info.length_bytes);
  store_wire::tail fields;
  fields.result = outcome_of(value.info);
  fields.result->way = store_wire::path::shm_direct;
  fields.token = value.pin;
  fields.extents = extents_of(value.segments);
  hold_pin(value.pin, value.info.length_bytes);
  answer(what, {}, std::move(fields), {}, value.info.length_bytes);
}

void session::stat(const request_ptr& what, std::string_view key) {
  door_of(*what).stat_async(what->head.pool_id, key, [me = shared_from_this(), what](result<store::value_info> found) {
    me->here([me, what, found = std::move(found)] {
      if (!found) return me->answer(what, found.error());
      store_wire::tail fields;
      fields.result = me->outcome_of(*found);
      me->answer(what, {}, std::move(fields), {}, found->length_bytes);
    });
  });
}

// Pins of another session are not this one's to drop; the engine looks.
void session::let_go(std::span<const std::uint64_t> pins) {
  for (const auto pin : pins) {
    (void)parts_.engine.unpin(engine_session_, pin);
    if (const auto mine = pinned_.extract(pin)) pinned_bytes_ -= mine.mapped();
  }
  memory_.set(granted_bytes_ + pinned_bytes_);
}

}  // namespace pl::store_server
