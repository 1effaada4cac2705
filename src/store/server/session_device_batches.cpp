// SPDX-License-Identifier: Apache-2.0
// Many values of one frame that this server moves itself, as session_device.cpp moves one:
//
//   put   a grant each ─▶ one claim ─▶ one list of copies ─▶ each summed ─▶ committed by one call ─▶ one answer
//   get   a pin each   ─▶ one claim ─▶ one list of copies ─▶ unpinned ─▶ one answer
//
// Several frames of a connection are in progress at a time: while one is copied, the next one begins, and another is
// summed. One thread was not enough for that: it took 0.7 us for each value, in which the link carries 35 KiB. So the
// connection's thread handles the connection's state and the copies. The threads that compute checksums also do the
// engine's part: they begin puts, pin and unpin, release replaced values, and write answers. One more thread commits
// puts. Frames are committed in the order of their arrival, so if a key is in two of them, the later value wins,
// provided that both have the same level. (Values of different levels are settled by different threads of the engine.)
//
// An item that cannot go this way gets the outcome ENOTSUP, ENOSPC or EMSGSIZE, and the client repeats it alone; if the
// whole frame is answered with ENOTSUP, the client repeats all items. Functions run on the connection's thread unless
// their comment says otherwise.
#include <algorithm>
#include <atomic>
#include <thread>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/client/checksum_pool.hpp"
#include "store/server/batch_work.hpp"
#include "store/server/device_claim.hpp"

namespace pl::store_server {
namespace {

using store_client::value_part;
using store_protocol::batch_item;
using store_protocol::batch_outcome;
using store_protocol::opcode;
using store_protocol::path;
namespace flag = store_protocol::flag;

// The part of a batch that one thread sums without looking for other work: it takes 25 us.
constexpr std::uint64_t kShareBytes = 256 << 10;
// If a first frame has this many items, others are likely to follow soon.
constexpr std::size_t kManyItems = 64;

// The pool with the fewest connections; each one keeps a reference.
std::shared_ptr<store_client::checksum_pool> least_used(std::span<const std::shared_ptr<store_client::checksum_pool>> all) {
  return *std::min_element(all.begin(), all.end(),
                           [](const auto& one, const auto& other) { return one.use_count() < other.use_count(); });
}

}  // namespace

std::vector<std::shared_ptr<store_client::checksum_pool>> make_commit_threads() {
  std::vector<std::shared_ptr<store_client::checksum_pool>> out(std::clamp(std::thread::hardware_concurrency() / 8, 1u, 4u));
  for (auto& one : out) one = std::make_shared<store_client::checksum_pool>(1u);
  return out;
}

struct session::device_batch : device_claim {
  explicit device_batch(std::string frame_body) : body(std::move(frame_body)) {}

  struct value {
    store::segment_list segments;
    std::uint64_t bytes = 0;       // that are moved
    std::uint64_t held_bytes = 0;  // of the store's memory, counted as hold() does
    std::uint64_t id = 0;          // put: the grant, get: the pin; 0: nothing is moved
    std::uint32_t crc = 0;         // put
    // `base` is the arena's address.
    void sum(const std::byte* base) {
      segment_walk(segments.span(), 0).next(bytes, [&](std::uint64_t offset, std::uint64_t part_bytes) {
        crc = arch::crc32c(base + offset, part_bytes, crc);
      });
    }
  };

  // What is moved, in the order of the items. Values that are adjacent on both sides become one piece: the arena places
  // the values of a run side by side, and so do most callers.
  struct piece {
    std::uint64_t offset = 0, bytes = 0;  // in the arena
    std::uint64_t device_address = 0;
  };

  request_ptr request;
  std::string body;
  std::vector<batch_item> items;  // their texts point into `body`
  std::vector<value> values;      // by item
  std::vector<std::string_view> keys;
  std::vector<piece> moved;
  std::uint64_t run = 0;  // the first of the grants or pins; 0 if there are none
  std::shared_ptr<batch_work> work;
  bool is_beside_others = false;  // this connection has other frames, or expects them
  std::uint64_t held_bytes = 0;   // counted for the principal: first what the frame asks for, then what it holds
  std::uint64_t moving_bytes = 0;
  // put: the options of the commits, prepared before other threads commit
  std::vector<store::run_commit> commits;
  store::run_options commit_options;
  bool is_ready = false;                    // may be committed; guarded by device_commits::mutex
  std::atomic<std::size_t> shares_left{0};  // still to be summed
  // get: a pin holds the whole value, however little of it is requested
  std::atomic<std::uint64_t> pinned_bytes{0};
  std::atomic<std::uint64_t> beside_bytes{0};  // part of these: what the account has ahead of `held_bytes`
  bool is_summed = false;                      // by this server's threads, not by the engine
  status outcome;                              // of the copies

  std::vector<piece> pieces() const {
    std::vector<piece> out;
    out.reserve(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint64_t address = memory->bound.address() + part.offset + items[i].offset;
      segment_walk(values[i].segments.span(), 0).next(values[i].bytes, [&](std::uint64_t offset, std::uint64_t bytes) {
        piece* const last = out.empty() ? nullptr : &out.back();
        if (last != nullptr && last->offset + last->bytes == offset && last->device_address + last->bytes == address)
          last->bytes += bytes;
        else out.push_back({offset, bytes, address});
        address += bytes;
      });
    }
    return out;
  }
  std::vector<store::segment> moved_segments() const {
    std::vector<store::segment> out;
    out.reserve(moved.size());
    for (const piece& one : moved) out.push_back({one.offset, one.bytes});
    return out;
  }
  // Precondition: the memory is bound.
  device_queue::job make_job(device_gpu::way direction) const {
    device_queue::job out{memory->gpu, direction, {}, {}};
    out.blocks.reserve(moved.size());
    for (const piece& one : moved) memory->gpu->add_blocks(direction, one.offset, one.device_address, one.bytes, out.blocks);
    return out;
  }
  std::uint64_t used_bytes() const {
    std::uint64_t out = 0;
    for (const value& one : values) out += one.held_bytes;
    return out;
  }
  // Fails the item; nothing of it is moved any more.
  void fail(std::size_t i, const failure& reason) {
    values[i] = {};
    work->fail(i, reason);
  }
};

// Precondition: the frame is complete and permitted, and each item lies within the memory that it names.
void session::dispatch_device_batch(const request_ptr& request, const pool_policy& pool, std::string_view body) {
  const opcode op = request->head.op;
  const bool is_put = op == opcode::batch_put;
  if ((!is_put && op != opcode::batch_get) || (request->head.flags & flag::atomic) != 0 || request->head.value_bytes != 0)
    return answer(request, {EPROTO, "device memory is for batches of whole values that are put or got, each by itself"});
  if (parts_.access.needs_private_arena(pool))
    return answer(request, {ENOTSUP, format("pool %s is not reached by shared memory: its settings forbid it, or not "
                                            "everybody who maps the store's memory may read and write it",
                                            pool.name.c_str())});
  const auto one = std::make_shared<device_batch>(std::string(body));
  one->request = request;
  auto items = store_protocol::decode_batch(one->body, store_protocol::batch_memory::device);
  if (!items) return answer(request, items.error());
  if (items->empty()) return answer(request, {EINVAL, "a batch has at least one item"});
  if (is_put && items->size() > store_protocol::kMaxBatchChanges)
    return answer(request, {EMSGSIZE, format("a batch changes at most %zu keys, unless it is atomic: send several",
                                             store_protocol::kMaxBatchChanges)});
  one->items = *std::move(items);
  one->values.resize(one->items.size());
  one->work = std::make_shared<batch_work>(one->items.size());
  if (const status found = name_device_memory(*request, *one); !found) return answer(request, found.error());
  const std::uint64_t size = one->memory->bound.size_bytes() - one->part.offset;
  std::uint64_t all_bytes = 0;
  for (const batch_item& item : one->items) {
    if (item.offset > size || item.room > size - item.offset)
      return answer(request, {EINVAL, format("%llu bytes from %llu on lie outside of device memory %u",
                                             static_cast<unsigned long long>(item.room),
                                             static_cast<unsigned long long>(item.offset), one->part.memory)});
    all_bytes += std::max(item.room, kMinHeldBytes);
  }
  if (all_bytes > parts_.config.max_request_bytes || granted_bytes_ + all_bytes > parts_.config.max_request_bytes)
    return answer(request, {ENOTSUP, format("%llu bytes: more than this connection may have in progress",
                                            static_cast<unsigned long long>(all_bytes))});
  const std::uint64_t last_bytes = std::max(one->items.back().room, kMinHeldBytes);
  if (const status may = may_hold(last_bytes, all_bytes - last_bytes); !may)
    return answer(request, {ENOTSUP, may.error().message});
  one->is_beside_others = parts_.sums->thread_count() >= kSeveralThreads &&
                          (in_flight_ > 1 || (one->items.size() >= kManyItems && parts_.sums->is_searching()));
  is_put ? put_device_batch(one, all_bytes) : get_device_batch(one, all_bytes);
}

// Runs `work` on a checksum thread if the connection's thread has other frames, otherwise on the connection's thread.
// Exceptions of `work` are rethrown on the connection's thread.
template <class Work>
void session::beside(const device_batch& one, store_client::checksum_pool& threads, Work work) {
  if (!one.is_beside_others) return work();
  threads.give([me = shared_from_this(), work = std::move(work)] {
    try {
      work();
    } catch (...) {
      me->run_on_home_thread([reason = std::current_exception()] { std::rethrow_exception(reason); });
    }
  });
}

void session::hold_device_batch(device_batch& one, std::uint64_t bytes) {
  hold(bytes - std::exchange(one.held_bytes, bytes));  // modulo 2^64: others never see both
  memory_.return_beside(one.beside_bytes.exchange(0));
}

// ---- Puts ----------------------------------------------------------------------------------------------------------------

void session::put_device_batch(const device_batch_ptr& one, std::uint64_t asked_bytes) {
  hold_device_batch(*one, asked_bytes);
  {
    const std::lock_guard lock(device_commits_.mutex);
    device_commits_.in_order.push_back(one);
    if (!device_commits_.thread) device_commits_.thread = least_used(parts_.commits);
  }
  store::begin_options options;
  options.owner = owner_of(one->request->fields);
  options.level = one->request->fields.level.value_or(store_protocol::durability::pool_default);
  options.request = request_of(one->request->fields);
  one->commit_options.put = put_options_of(one->request->fields, 0);
  beside(*one, *parts_.sums, [me = shared_from_this(), one, options] {
    if (one->is_beside_others) me->device_commits_.thread->call(1);  // it is awake by then
    status begun = me->begin_device_batch(*one, options);
    me->run_on_home_thread([me, one, begun = std::move(begun)] { me->device_batch_begun(one, begun); });
  });
}

// May run on any thread.
status session::begin_device_batch(device_batch& one, const store::begin_options& options) {
  const auto pool = one.request->head.pool_id;
  std::vector<store::run_put> puts;
  puts.reserve(one.items.size());
  for (std::size_t i = 0; i < one.items.size(); ++i) {
    const batch_item& item = one.items[i];
    const status admitted = parts_.values.admits(pool, item.key, true);
    if (!admitted) one.fail(i, admitted.error());
    puts.push_back({item.key, item.room, admitted.ok(), static_cast<store::condition>(item.only.kind), item.only.version});
  }
  auto begun = parts_.engine.begin_run(engine_session_, pool, puts, options);
  if (!begun) return begun.error();
  one.run = begun->first;
  for (std::size_t i = 0; i < puts.size(); ++i) {
    if (!puts[i].is_wanted) continue;
    auto& given = begun->values[i];
    if (!given.is_granted()) {
      one.fail(i, given.refusal);
      continue;
    }
    if (parts_.engine.is_in_private_arena(given.segments.span())) {
      (void)parts_.engine.abort(engine_session_, one.run + i);
      one.fail(i, kApart);
      continue;
    }
    one.values[i].id = one.run + i;
    one.values[i].bytes = puts[i].length_bytes;
    one.values[i].held_bytes = std::max(puts[i].length_bytes, kMinHeldBytes);
    one.values[i].segments = std::move(given.segments);
    one.moving_bytes += puts[i].length_bytes;
  }
  one.moved = one.pieces();
  one.is_summed = one.moving_bytes > kUnsummedBytes;
  prepare_device_commits(one);
  return {};
}

void session::device_batch_begun(const device_batch_ptr& one, const status& begun) {
  if (!begun) return end_device_put(one, begun.error());
  hold_device_batch(*one, one->used_bytes());
  bind_for_device(one->memory->gpu, one->moved_segments(), [me = shared_from_this(), one](const status& bound) {
    one->outcome = bound;
    me->fetch_device_batch(one);
  });
}

// Ends a put without a commit.
void session::end_device_put(const device_batch_ptr& one, const failure& reason) {
  {
    const std::lock_guard lock(device_commits_.mutex);
    std::erase(device_commits_.in_order, one);
  }
  commit_ready_batches();  // those queued behind it
  answer_device_batch(one, reason);
}

void session::abort_device_batch(const device_batch_ptr& one) {
  one->end_memory();
  if (one->run != 0) (void)parts_.engine.abort_run(engine_session_, one->run);
  end_device_put(one, device_refusal(one->outcome.error()));
}

void session::fetch_device_batch(const device_batch_ptr& one) {
  if (one->outcome && (closed_ || !one->claim())) one->outcome = failure{ECANCELED, "the client no longer waits for it"};
  if (!one->outcome) return abort_device_batch(one);
  auto copy = one->make_job(device_gpu::way::to_store);
  if (copy.blocks.empty()) return device_batch_arrived(one);
  copy.ended = [me = shared_from_this(), one](const status& ended) {
    one->outcome = ended;
    me->device_batch_arrived(one);
  };
  transfers_here->add(std::move(copy));
  transfers_here->flush();
  if (one->is_summed) parts_.sums->call(one->moving_bytes / kShareBytes + 1);  // the copies continue meanwhile
}

// May run on any thread.
void session::prepare_device_commits(device_batch& one) {
  const auto pool = one.request->head.pool_id;
  one.commits.resize(one.items.size());
  one.keys.reserve(one.items.size());
  for (std::size_t i = 0; i < one.items.size(); ++i) {
    const batch_item& item = one.items[i];
    one.keys.push_back(item.key);
    store::run_commit& mine = one.commits[i];
    mine.is_wanted = one.values[i].id != 0;
    if (!mine.is_wanted) continue;
    mine.precondition = static_cast<store::condition>(item.only.kind);
    mine.expected_version = item.only.version;
    mine.user_flags = item.user_flags;
    mine.ttl_ms = item.ttl_ms;
    mine.request_group = parts_.values.request_group(pool, item.key);
  }
  one.commit_options.take_crc = one.is_summed;
  if (!one.is_beside_others) return;
  one.commit_options.afterwards = [sums = parts_.sums](std::function<void()> task) { sums->give(std::move(task)); };
}

// The bytes are in the arena, or will not arrive.
void session::device_batch_arrived(const device_batch_ptr& one) {
  one->end_memory();
  if (one->outcome && closed_) one->outcome = failure{ECANCELED, "the client has disconnected"};
  if (!one->outcome) return abort_device_batch(one);
  const auto pool = one->request->head.pool_id;
  if (!may_still_write(pool)) {
    for (std::size_t i = 0; i < one->values.size(); ++i)
      if (std::exchange(one->commits[i].is_wanted, false)) one->fail(i, permission_lost(pool));
  }
  if (one->is_summed) sum_device_batch(one);
  else device_batch_ready(one);
}

// Runs on several threads; the last one continues.
void session::sum_device_batch(const device_batch_ptr& one) {
  std::vector<std::size_t> ends;  // of the shares
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < one->values.size(); ++i) {
    bytes += one->values[i].bytes;
    if (bytes < kShareBytes && i + 1 < one->values.size()) continue;
    ends.push_back(i + 1);
    bytes = 0;
  }
  one->shares_left = ends.size();
  const auto block = std::make_shared<std::vector<value_part>>(ends.size());
  std::vector<std::shared_ptr<value_part>> parts;
  parts.reserve(ends.size());
  for (std::size_t share = 0; share < ends.size(); ++share) {
    const std::size_t first = share == 0 ? 0 : ends[share - 1], end = ends[share];
    (*block)[share].task = [me = shared_from_this(), one, first, end] {
      const std::byte* base = me->parts_.engine.arena().base;
      for (std::size_t i = first; i < end; ++i) {
        one->values[i].sum(base);
        one->commits[i].crc32c = one->values[i].crc;
      }
      if (one->shares_left.fetch_sub(1, std::memory_order_acq_rel) == 1) me->device_batch_ready(one);
    };
    parts.emplace_back(block, &(*block)[share]);
  }
  parts_.sums->give(parts);
  // This thread has more frames to begin, so it only sums what the others would start late.
  transfers_here->watch([one, sums = parts_.sums] {
    const bool is_over = one->shares_left.load(std::memory_order_acquire) == 0;
    if (!is_over && sums->is_behind()) (void)sums->help();
    return is_over;
  });
}

// May run on any thread.
void session::device_batch_ready(const device_batch_ptr& one) {
  {
    const std::lock_guard lock(device_commits_.mutex);
    one->is_ready = true;
  }
  commit_ready_batches();
}

// May run on any thread. A frame that follows others is left to the commit thread, which continues with whatever
// becomes ready meanwhile. If that thread is still asleep, this one commits, because a wakeup takes as long as several
// commits.
void session::commit_ready_batches() {
  auto& list = device_commits_.in_order;
  for (;;) {
    device_batch_ptr next;
    bool is_left = false;
    {
      const std::lock_guard lock(device_commits_.mutex);
      if (device_commits_.is_busy || list.empty() || !list.front()->is_ready) return;
      device_commits_.is_busy = true;
      next = list.front();
      is_left = next->is_beside_others && device_commits_.thread->is_searching();
      if (!is_left) list.pop_front();
    }
    if (is_left) return beside(*next, *device_commits_.thread, [me = shared_from_this()] { me->commit_batches(); });
    commit_device_batch(next);
    const std::lock_guard lock(device_commits_.mutex);
    device_commits_.is_busy = false;
  }
}

// Runs on the commit thread.
void session::commit_batches() {
  auto& list = device_commits_.in_order;
  for (;;) {
    device_batch_ptr next;
    {
      const std::lock_guard lock(device_commits_.mutex);
      device_commits_.is_busy = !list.empty() && list.front()->is_ready;
      if (!device_commits_.is_busy) return;
      next = std::move(list.front());
      list.pop_front();
    }
    commit_device_batch(next);
  }
}

// May run on any thread.
void session::commit_device_batch(const device_batch_ptr& one) {
  const auto go_on = [me = shared_from_this(), one](std::vector<store::committed_value> done) {
    me->beside(*one, *me->parts_.sums, [me, one, done = std::move(done)] { me->device_batch_committed(one, done); });
  };
  if (one->run == 0) return go_on({});
  parts_.values.commit_run(engine_session_, one->run, one->request->head.pool_id, one->keys, one->commits,
                           one->commit_options, go_on);
}

// May run on any thread. `done` is empty, or has an entry for each item; it says nothing about items that failed
// before.
void session::device_batch_committed(const device_batch_ptr& one, const std::vector<store::committed_value>& done) {
  std::uint64_t stored_bytes = 0;
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (!one->commits[i].is_wanted) continue;
    if (!done[i].is_done()) {
      one->work->fail(i, done[i].refusal);
      continue;
    }
    const store::put_result& put = done[i].done;
    batch_outcome& reported = one->work->outcomes[i].reported;
    reported.version = put.version, reported.crc = put.crc32c, reported.reached = put.reached;
    reported.repeated = put.repeated, reported.value_bytes = one->values[i].bytes;
    stored_bytes += one->values[i].bytes;
  }
  parts_.counters.bytes(path::gpu_direct, true, stored_bytes);
  answer_device_batch(one, {});
}

// May run on any thread.
void session::answer_device_batch(const device_batch_ptr& one, status outcome) {
  std::string body = outcome ? one->work->body(parts_.engine.arena().base) : std::string();
  run_on_home_thread([me = shared_from_this(), one, outcome = std::move(outcome), body = std::move(body)] {
    me->hold_device_batch(*one, 0);
    me->answer(one->request, outcome, {}, body);
  });
}

// ---- Gets ----------------------------------------------------------------------------------------------------------------

// May run on any thread. ENOSPC: the item has to be fetched alone. Counted at once, because other frames pin at the
// same time.
status session::pin_device_item(device_batch& one, std::uint64_t value_bytes) const {
  const std::uint64_t bytes = std::max(value_bytes, kMinHeldBytes);
  const std::uint64_t before = one.pinned_bytes.fetch_add(bytes, std::memory_order_relaxed);
  // What the frame asked for is counted already.
  const std::uint64_t counted = std::max(before + bytes, one.held_bytes);
  const std::uint64_t more = counted - std::max(before, one.held_bytes);
  if (more == 0) return {};
  const std::uint64_t all = memory_.add_beside(more);
  if (all <= max_held_bytes() || (before == 0 && all == counted)) {
    one.beside_bytes.fetch_add(more, std::memory_order_relaxed);
    return {};
  }
  memory_.return_beside(more);
  one.pinned_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  return holds_enough(all - more);
}

void session::take_device_item(const device_batch_ptr& one, std::size_t i, std::uint64_t pin, const store::value_info& info,
                               store::segment_list segments) const {
  if (const status may = pin_device_item(*one, info.length_bytes); !may) {
    (void)parts_.engine.unpin(engine_session_, pin);
    return one->work->fail(i, may.error());
  }
  batch_outcome& reported = one->work->outcomes[i].reported;
  reported.version = info.version, reported.crc = info.crc32c, reported.user_flags = info.user_flags;
  reported.value_bytes = info.length_bytes, reported.reached = info.level;
  one->values[i].id = pin;
  one->values[i].held_bytes = std::max(info.length_bytes, kMinHeldBytes);
  one->values[i].segments = std::move(segments);
  one->values[i].bytes = std::min(one->items[i].room, info.length_bytes);
}

// May run on any thread.
void session::found_device_item(const device_batch_ptr& one, std::size_t i, const result<store::pinned_value>& found) {
  if (!found) {
    one->work->fail(i, found.error());
  } else if (found->reader) {
    one->work->fail(i, {EMSGSIZE, "the value is not in memory: get it with a single get"});
  } else {
    store::segment_list segments;
    segments = found->segments;
    take_device_item(one, i, found->pin, found->info, std::move(segments));
  }
  end_device_lookup(one);
}

// May run on any thread; the last one continues.
void session::end_device_lookup(const device_batch_ptr& one) {
  if (one->work->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  for (std::size_t i = 0; i < one->items.size(); ++i) {
    auto& value = one->values[i];
    if (value.id == 0 || !parts_.engine.is_in_private_arena(value.segments.span()))
      continue;  // its pool's list has just changed
    (void)parts_.engine.unpin(engine_session_, value.id);
    one->fail(i, kApart);
  }
  one->moved = one->pieces();
  run_on_home_thread([me = shared_from_this(), one] { me->device_batch_found(one); });
}

void session::get_device_batch(const device_batch_ptr& one, std::uint64_t asked_bytes) {
  store::get_options options;
  options.verify = (one->request->head.flags & flag::verify) != 0;
  options.or_reader = true;
  options.bypass_memory = !may_hold(0).ok();
  hold_device_batch(*one, asked_bytes);
  beside(*one, *parts_.sums, [me = shared_from_this(), one, options] { me->pin_device_batch(one, options); });
}

// May run on any thread. Values in memory are pinned at once; the others are looked up one by one, and may come from
// the disk.
void session::pin_device_batch(const device_batch_ptr& one, const store::get_options& options) {
  const auto pool = one->request->head.pool_id;
  one->keys.reserve(one->items.size());
  for (const batch_item& item : one->items) one->keys.push_back(item.key);
  auto run = parts_.values.pin_run(engine_session_, pool, one->keys, options);
  if (!run) return answer_device_batch(one, run.error());
  one->run = run->first;
  one->work->left = 1;
  for (std::size_t i = 0; i < one->items.size(); ++i) {
    auto& found = run->values[i];
    if (const status admitted = parts_.values.admits(pool, one->items[i].key, false); !admitted) {
      one->work->fail(i, admitted.error());
      if (found.is_pinned) (void)parts_.engine.unpin(engine_session_, one->run + i);
    } else if (found.refusal.code != 0) {
      one->work->fail(i, found.refusal);
    } else if (found.is_pinned) {
      take_device_item(one, i, one->run + i, found.info, std::move(found.segments));
    } else {
      one->work->left.fetch_add(1, std::memory_order_relaxed);
      parts_.values.lookup_async(engine_session_, pool, one->items[i].key, options,
                                 [me = shared_from_this(), one, i](const result<store::pinned_value>& value) {
                                   me->found_device_item(one, i, value);
                                 });
    }
  }
  end_device_lookup(one);
}

void session::device_batch_found(const device_batch_ptr& one) {
  hold_device_batch(*one, one->used_bytes());
  bind_for_device(one->memory->gpu, one->moved_segments(), [me = shared_from_this(), one](const status& bound) {
    one->outcome = bound;
    me->write_device_batch(one);
  });
}

void session::write_device_batch(const device_batch_ptr& one) {
  if (one->outcome && (closed_ || !one->claim())) one->outcome = failure{ECANCELED, "the client no longer waits for it"};
  if (!one->outcome) return end_device_batch(one);
  auto copy = one->make_job(device_gpu::way::to_device);
  if (copy.blocks.empty()) return end_device_batch(one);
  copy.ended = [me = shared_from_this(), one](const status& ended) {
    one->outcome = ended;
    me->end_device_batch(one);
  };
  transfers_here->add(std::move(copy));
  transfers_here->flush();
}

void session::end_device_batch(const device_batch_ptr& one) {
  one->end_memory();
  if (!one->outcome) one->outcome = device_refusal(one->outcome.error());
  beside(*one, *parts_.sums, [me = shared_from_this(), one] { me->unpin_device_batch(one); });
}

// May run on any thread.
void session::unpin_device_batch(const device_batch_ptr& one) {
  std::uint64_t moved = 0;
  if (one->run != 0) (void)parts_.engine.unpin_run(engine_session_, one->run);
  for (std::size_t i = 0; i < one->values.size(); ++i) {
    const auto& value = one->values[i];
    const bool is_of_run = one->run != 0 && value.id == one->run + i;
    if (value.id != 0 && !is_of_run) (void)parts_.engine.unpin(engine_session_, value.id);
    moved += value.bytes;
  }
  if (!one->outcome) return answer_device_batch(one, one->outcome);
  parts_.counters.bytes(path::gpu_direct, false, moved);
  answer_device_batch(one, {});
}

}  // namespace pl::store_server
