// SPDX-License-Identifier: Apache-2.0
// Many keys in one frame: each item runs like a single request of its kind, with its own rights in the cluster, its own
// number against repetition, and its own outcome. Also erases all keys with a common prefix.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/protocol/batch.hpp"
#include "store/server/batch_work.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {
namespace {

using store_protocol::batch_item;
using store_protocol::batch_outcome;
using store_protocol::opcode;
namespace flag = store_protocol::flag;

const failure kNoRoomInAnswer{EMSGSIZE, "the value does not fit the answer: get it by itself"};

void note_found(batch_outcome& reported, const store::value_info& info) {
  reported.version = info.version, reported.crc = info.crc32c, reported.user_flags = info.user_flags;
  reported.value_bytes = info.length_bytes, reported.reached = info.level;
}

bool changes(opcode op) { return op == opcode::batch_put || op == opcode::batch_erase || op == opcode::erase_prefix; }

}  // namespace

void session::dispatch_batch(const request_ptr& request, const pool_policy& pool, std::string_view key,
                             std::string_view body) {
  const opcode op = request->head.op;
  const rights may = parts_.access.rights_of(wire_->other(), pool);
  const bool writes = changes(op);
  if (writes ? !may.write : !may.read)
    return answer(request,
                  {EACCES, format("%s may not %s pool %s: its access list is \"%s\"", wire_->other().principal.c_str(),
                                  writes ? "write" : "read", pool.name.c_str(), pool.access.c_str())});
  if (request->fields.copy) return answer(request, {EPROTO, "copies do not come in batches"});
  if (op == opcode::erase_prefix) return erase_prefix(request, std::string(key));
  if ((request->head.flags & flag::device) != 0) return dispatch_device_batch(request, pool, body);
  const auto items = store_protocol::decode_batch(body);
  if (!items) return answer(request, items.error());
  const bool atomic = (request->head.flags & flag::atomic) != 0;
  if (items->empty()) return answer(request, {EINVAL, "a batch has at least one item"});
  if (writes && !atomic && items->size() > store_protocol::kMaxBatchChanges)
    return answer(request, {EMSGSIZE, format("a batch changes at most %zu keys, unless it is atomic: send several",
                                             store_protocol::kMaxBatchChanges)});
  if (atomic && !writes) return answer(request, {EINVAL, "a batch that reads is not atomic"});
  if (atomic) return batch_atomic(request, *items);
  const auto work = std::make_shared<batch_work>(items->size());
  work->room = static_cast<std::int64_t>(
      std::min<std::uint64_t>(request->head.value_bytes, store_protocol::kMaxBodyBytes - batch_work::kOtherBytes));
  if (op == opcode::batch_get && get_run(request, work, *items)) return;
  if (op == opcode::batch_put && put_run(request, work, pool, *items)) return;
  for (std::size_t i = 0; i < items->size(); ++i) {
    const batch_item& one = (*items)[i];
    if (const status admitted = parts_.values.admits(request->head.pool_id, one.key, writes); !admitted) {
      work->fail(i, admitted.error());
      batch_item_done(request, work);
    } else if (op == opcode::batch_put) {
      batch_put(request, work, i, one);
    } else if (op == opcode::batch_erase) {
      batch_erase(request, work, i, one);
    } else {
      batch_read(request, work, i, one);
    }
  }
}

// ---- By one call of the engine for all values (engine/runs.hpp) ----------------------------------------------------------

// Puts the values of one frame by one call. They all lie in memory at once; values that do not fit beside the others
// are put without a run. Returns false if nothing has been done: the items then go one by one.
bool session::put_run(const request_ptr& request, const std::shared_ptr<batch_work>& work, const pool_policy& pool,
                      const std::vector<batch_item>& items) {
  store::run_options options;
  options.put = put_options_of(request->fields, 0);
  options.take_crc = true;
  const auto level = options.put.level == store::durability::pool_default ? pool.level : options.put.level;
  const auto id = request->head.pool_id;
  // Values that go to disk need a commit of their own, so a run would save little.
  if (level != store::durability::volatile_ || !parts_.values.has_runs(id)) return false;
  std::vector<store::run_put> puts;
  std::vector<std::string_view> keys;
  std::uint64_t bytes = 0;
  puts.reserve(items.size()), keys.reserve(items.size());
  for (const batch_item& one : items) {
    puts.push_back({one.key, one.value.size(), parts_.values.admits(id, one.key, true).ok()});
    keys.push_back(one.key);
    if (!puts.back().is_wanted) return false;
    bytes += one.value.size();
  }
  // If a quota ends in the middle of the frame, the earlier items must get the rest of it, but a run has another order.
  if (!parts_.engine.fits_quotas(id, options.put.owner, items.size(), bytes)) return false;
  store::begin_options begin;
  begin.level = options.put.level;
  begin.checks_quotas = false;
  auto given = parts_.engine.begin_run(engine_session_, id, puts, begin);
  if (!given) return false;
  const bool has_room =
      std::none_of(given->values.begin(), given->values.end(), [](const auto& one) { return one.refusal.code == ENOSPC; });
  if (!has_room) {
    if (given->first != 0) (void)parts_.engine.abort_run(engine_session_, given->first);
    return false;
  }
  std::vector<store::run_commit> commits(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    store::run_commit& mine = commits[i];
    mine.is_wanted = given->values[i].is_granted();
    if (!mine.is_wanted) work->fail(i, given->values[i].refusal);
    const store::put_options one = options_of_item({}, items[i], 0);
    mine.precondition = one.precondition, mine.expected_version = one.expected_version;
    mine.user_flags = one.user_flags, mine.ttl_ms = one.ttl_ms;
    mine.request_group = parts_.values.request_group(id, items[i].key);
    const char* next = items[i].value.data();
    for (const store::segment& piece : given->values[i].segments) {
      mine.crc32c = arch::crc32c_copy(parts_.engine.arena().base + piece.offset_bytes, next, piece.size_bytes, mine.crc32c);
      next += piece.size_bytes;
    }
  }
  work->left = 1;
  if (given->first == 0) {
    batch_item_done(request, work);
    return true;
  }
  std::vector<std::uint64_t> sizes;
  sizes.reserve(items.size());
  for (const batch_item& one : items) sizes.push_back(one.value.size());
  parts_.values.commit_run(
      engine_session_, given->first, id, keys, commits, options,
      [me = shared_from_this(), request, work, sizes = std::move(sizes)](const std::vector<store::committed_value>& done) {
        me->note_run(*work, done, sizes);
        me->batch_item_done(request, work);
      });
  return true;
}

// May run on any thread. `done` says nothing about values that failed before.
void session::note_run(batch_work& work, const std::vector<store::committed_value>& done,
                       const std::vector<std::uint64_t>& sizes) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < done.size(); ++i) {
    batch_outcome& reported = work.outcomes[i].reported;
    if (reported.status != 0) continue;
    if (!done[i].is_done()) {
      work.fail(i, done[i].refusal);
      continue;
    }
    const store::put_result& put = done[i].done;
    reported.version = put.version, reported.crc = put.crc32c, reported.reached = put.reached;
    reported.value_bytes = sizes[i], reported.repeated = put.repeated;
    bytes += sizes[i];
  }
  parts_.counters.bytes(wire_->other().way, true, bytes);
}

// Copies values in memory straight into the answer. The rest is looked up one by one, and may come from the disk.
// Returns false if nothing has been done.
bool session::get_run(const request_ptr& request, const std::shared_ptr<batch_work>& work,
                      const std::vector<batch_item>& items) {
  const auto pool = request->head.pool_id;
  std::vector<std::string_view> keys;
  keys.reserve(items.size());
  for (const batch_item& one : items) keys.push_back(one.key);
  auto run = parts_.values.pin_run(engine_session_, pool, keys, batch_get_options(*request));
  if (!run) return false;
  std::vector<std::size_t> missing;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto& found = run->values[i];
    auto& outcome = work->outcomes[i];
    if (const status admitted = parts_.values.admits(pool, items[i].key, false); !admitted) {
      work->fail(i, admitted.error());
    } else if (found.refusal.code != 0) {
      work->fail(i, found.refusal);
    } else if (!found.is_pinned) {
      missing.push_back(i);
    } else {
      note_found(outcome.reported, found.info);
      if (!take_room(*work, i, items[i].room)) continue;
      outcome.bytes = std::min(items[i].room, found.info.length_bytes);
      outcome.pieces = std::move(found.segments);
      bytes += outcome.bytes;
    }
  }
  parts_.counters.bytes(wire_->other().way, false, bytes);
  const std::byte* base = parts_.engine.arena().base;
  if (missing.empty()) {
    answer(request, status{}, {}, work->body(base));
  } else {
    for (auto& one : work->outcomes) one.copy_pieces(base);
  }
  if (run->first != 0) (void)parts_.engine.unpin_run(engine_session_, run->first);
  work->left = missing.size();
  for (const std::size_t i : missing) batch_read(request, work, i, items[i]);
  return true;
}

store::get_options session::batch_get_options(const pending_request& request) const {
  store::get_options options;
  options.verify = (request.head.flags & flag::verify) != 0;
  options.or_reader = true;
  options.bypass_memory = !may_hold(0).ok();
  return options;
}

// Takes room in the answer for a value that was found. Returns false if the item has failed.
bool session::take_room(batch_work& work, std::size_t number, std::uint64_t wanted) {
  const std::uint64_t bytes = std::min(wanted, work.outcomes[number].reported.value_bytes);
  const auto taken = static_cast<std::int64_t>(std::min<std::uint64_t>(bytes, store_protocol::kMaxBodyBytes));
  if (work.room.fetch_sub(taken) >= taken) return true;
  work.room.fetch_add(taken);
  work.fail(number, kNoRoomInAnswer);
  return false;
}

// ---- One by one ----------------------------------------------------------------------------------------------------------

// May run on any thread.
void session::batch_item_done(const request_ptr& request, const std::shared_ptr<batch_work>& work) {
  if (work->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  run_on_home_thread([me = shared_from_this(), request, work] {
    me->answer(request, status{}, {}, work->body(me->parts_.engine.arena().base));
  });
}

store::put_options options_of_item(const store::put_options& frame, const batch_item& one, std::size_t number) {
  store::put_options out = frame;
  out.precondition = static_cast<store::condition>(one.only.kind);
  out.expected_version = one.only.version;
  out.user_flags = one.user_flags;
  if (one.ttl_ms != 0) out.ttl_ms = one.ttl_ms;
  if (out.request.client != 0) out.request.sequence += number;
  return out;
}

void session::batch_put(const request_ptr& request, const std::shared_ptr<batch_work>& work, std::size_t number,
                        const batch_item& one) {
  const auto pool = request->head.pool_id;
  const auto options =
      options_of_item(put_options_of(request->fields, parts_.values.request_group(pool, one.key)), one, number);
  parts_.values.put_async(
      pool, one.key, std::as_bytes(std::span(one.value)), options,
      [me = shared_from_this(), request, work, number, bytes = one.value.size()](result<store::put_result> done) {
        if (!done) {
          work->fail(number, done.error());
        } else {
          batch_outcome& reported = work->outcomes[number].reported;
          reported.version = done->version, reported.crc = done->crc32c, reported.reached = done->reached;
          reported.value_bytes = bytes, reported.repeated = done->repeated;
          me->parts_.counters.bytes(me->wire_->other().way, true, bytes);
        }
        me->batch_item_done(request, work);
      });
}

void session::batch_erase(const request_ptr& request, const std::shared_ptr<batch_work>& work, std::size_t number,
                          const batch_item& one) {
  const auto pool = request->head.pool_id;
  const auto given =
      options_of_item(put_options_of(request->fields, parts_.values.request_group(pool, one.key)), one, number);
  store::erase_options options;
  options.level = given.level;
  options.precondition = given.precondition == store::condition::none ? store::condition::if_present : given.precondition;
  options.expected_version = given.expected_version;
  options.request = given.request;
  parts_.values.erase_async(
      pool, one.key, options, [me = shared_from_this(), request, work, number](result<store::erase_result> done) {
        if (!done) {
          work->fail(number, done.error());
        } else {
          batch_outcome& reported = work->outcomes[number].reported;
          reported.version = done->version, reported.reached = done->reached, reported.repeated = done->repeated;
        }
        me->batch_item_done(request, work);
      });
}

// The value's bytes are copied at once and its pin is released, so that a batch holds no memory of the arena.
void session::batch_read(const request_ptr& request, const std::shared_ptr<batch_work>& work, std::size_t number,
                         const batch_item& one) {
  const auto pool = request->head.pool_id;
  if (request->head.op == opcode::batch_exists) {
    return parts_.values.stat_async(pool, one.key, [=, me = shared_from_this()](result<store::value_info> found) {
      if (found) note_found(work->outcomes[number].reported, *found);
      else work->fail(number, found.error());
      me->batch_item_done(request, work);
    });
  }
  parts_.values.lookup_async(engine_session_, pool, one.key, batch_get_options(*request),
                             [=, me = shared_from_this(), wanted = one.room](result<store::pinned_value> found) {
                               if (!found) {
                                 work->fail(number, found.error());
                                 return me->batch_item_done(request, work);
                               }
                               auto& outcome = work->outcomes[number];
                               note_found(outcome.reported, found->info);
                               const std::uint64_t bytes = std::min(wanted, found->info.length_bytes);
                               if (found->reader) work->fail(number, kNoRoomInAnswer);
                               else if (take_room(*work, number, wanted)) me->append_pinned(*found, bytes, outcome.value);
                               if (found->pin != 0) (void)me->parts_.engine.unpin(me->engine_session_, found->pin);
                               me->parts_.counters.bytes(me->wire_->other().way, false, outcome.value.size());
                               me->batch_item_done(request, work);
                             });
}

void session::append_pinned(const store::pinned_value& value, std::uint64_t bytes, std::string& destination) const {
  destination.reserve(bytes);
  for (const store::segment& piece : value.segments) {
    const auto part = std::min<std::uint64_t>(piece.size_bytes, bytes - destination.size());
    destination.append(reinterpret_cast<const char*>(parts_.engine.arena().base + piece.offset_bytes), part);
  }
}

void session::batch_atomic(const request_ptr& request, const std::vector<batch_item>& items) {
  const bool puts = request->head.op == opcode::batch_put;
  std::vector<store::batch_operation> list;
  std::vector<std::uint64_t> sizes;
  for (const batch_item& one : items) {
    if (const status admitted = parts_.values.admits(request->head.pool_id, one.key, true); !admitted)
      return answer(request, admitted.error());
    auto condition = static_cast<store::condition>(one.only.kind);
    if (!puts && condition == store::condition::none) condition = store::condition::if_present;
    list.push_back({puts ? store::batch_operation::kind::put : store::batch_operation::kind::erase, one.key,
                    std::as_bytes(std::span(one.value)), condition, one.only.version, one.user_flags, one.ttl_ms});
    sizes.push_back(one.value.size());  // 0 for an erase
  }
  const auto given = put_options_of(request->fields, parts_.values.request_group(request->head.pool_id, items.front().key));
  const store::batch_options options{given.level, true, given.request, given.owner};
  parts_.values.batch_async(
      request->head.pool_id, list, options,
      [me = shared_from_this(), request, puts, sizes = std::move(sizes)](result<store::batch_result> done) {
        const auto work = std::make_shared<batch_work>(sizes.size());
        work->left = 1;
        if (done) {
          for (std::size_t i = 0; i < sizes.size() && i < done->items.size(); ++i) {
            const store::batch_item& one = done->items[i];
            batch_outcome& reported = work->outcomes[i].reported;
            reported.version = one.version, reported.reached = done->reached, reported.repeated = done->repeated,
            reported.value_bytes = sizes[i];
            if (one.error != 0) work->fail(i, {one.error, one.message});
            else if (puts) me->parts_.counters.bytes(me->wire_->other().way, true, sizes[i]);
          }
          return me->batch_item_done(request, work);
        }
        me->run_on_home_thread([me, request, reason = done.error()] { me->answer(request, reason); });
      });
}

// ---- Keys with a common prefix ----------------------------------------------------------------------------------------

// Counts the erases of a page; the last one answers. No thread waits for them, because a cluster's copies may take
// seconds.
struct session::prefix_page {
  std::atomic<std::size_t> left{1};  // one for the page itself
  std::atomic<std::uint64_t> erased{0};
  std::mutex lock;
  std::optional<failure> first_failure;
  std::string last;
  bool more = false;
  std::optional<store_client::unit_list> listed;  // in a cluster: the units of which nothing is left here

  // Another server has the key, or will.
  void leave(std::string_view key) {
    const std::lock_guard hold(lock);
    if (listed) listed->reset(store_client::slot_of(key) / store_client::kUnitSlots);
  }
  void note(std::string_view key, const result<store::erase_result>& done) {
    // The key was erased or put meanwhile: its value now is another one, which nobody asked to erase.
    if (done && done->version != 0) erased.fetch_add(1, std::memory_order_relaxed);
    if (done || done.code() == ENOENT || done.code() == ESTALE) return;
    if (listed && (done.code() == EREMOTE || done.code() == EAGAIN)) return leave(key);
    const std::lock_guard hold(lock);
    if (!first_failure) first_failure = done.error();
  }
};

void session::erase_prefix(const request_ptr& request, std::string prefix) {
  if (prefix.empty())
    return answer(request, {EINVAL, "a prefix has at least one byte: delete the pool to erase all of its values"});
  store::find_options options;
  options.prefix = prefix;
  options.after = request->fields.after.value_or("");
  if (request->head.value_bytes > 0 && request->head.value_bytes < options.limit) options.limit = request->head.value_bytes;
  const auto pool = request->head.pool_id;
  using found_t = std::pair<store::find_page, std::optional<store_client::unit_list>>;
  aside<found_t>(
      request,
      [this, request, pool, options]() -> result<found_t> {
        if (gone_ || parts_.halted) return failure{ECANCELED, "no client waits for the page any more"};
        auto now = options;
        now.deadline = std::min(request->deadline, clock::now() + kLongestSearch);
        return listed_during(pool, [&] { return parts_.engine.find(pool, now); });
      },
      [me = shared_from_this(), request](const found_t& found) { me->erase_found(request, found.first, found.second); },
      fair_workers::kind::search);
}

void session::erase_found(const request_ptr& request, const store::find_page& found,
                          const std::optional<store_client::unit_list>& listed) {
  const auto pool = request->head.pool_id;
  if (!may_still_write(pool)) return answer(request, permission_lost(pool));
  const auto page = std::make_shared<prefix_page>();
  page->last = found.last, page->more = found.more, page->listed = listed;
  store::erase_options options;
  options.level = put_options_of(request->fields, 0).level;
  options.precondition = store::condition::if_version;
  for (std::size_t i = 0; i < found.keys.size(); ++i) {
    const std::string& key = found.keys[i];
    if (listed && !store_client::contains(*listed, key)) continue;
    if (!parts_.values.admits(pool, key, true)) {
      page->leave(key);
      continue;
    }
    options.expected_version = found.values[i].version;
    ++page->left;
    parts_.values.erase_async(pool, key, options,
                              [me = shared_from_this(), request, page, key](const result<store::erase_result>& done) {
                                page->note(key, done);
                                me->prefix_item_done(request, page);
                              });
  }
  prefix_item_done(request, page);
}

// May run on any thread.
void session::prefix_item_done(const request_ptr& request, const std::shared_ptr<prefix_page>& page) {
  if (page->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  run_on_home_thread([me = shared_from_this(), request, page] {
    if (page->first_failure) return me->answer(request, *page->first_failure);
    store_protocol::tail fields;
    fields.after = page->last;
    fields.result.emplace().value_bytes = page->erased;
    if (page->listed) fields.listed = store_client::to_bytes(*page->listed);
    me->answer(request, {}, std::move(fields), {}, 0, page->more ? flag::more : std::uint16_t{0});
  });
}

}  // namespace pl::store_server
