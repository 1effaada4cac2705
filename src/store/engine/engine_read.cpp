// SPDX-License-Identifier: Apache-2.0
// Gets, pins, and how values come back from disk.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

status check_crc(const pool_state& pool, std::string_view full, const value& what, std::uint32_t found,
                 const std::string& place) {
  if (found == what.crc) return {};
  return failure{EBADMSG, format("store: pool %s, key %s, version %llu, %s: checksum is 0x%08x, should be 0x%08x",
                                 shown(pool.name).c_str(), shown(key_of(full)).c_str(),
                                 static_cast<unsigned long long>(what.version), place.c_str(), found, what.crc)};
}

failure behind_the_end(std::string_view full, std::uint64_t length_bytes, std::uint64_t offset_bytes) {
  return failure{EINVAL,
                 format("store: key %s has %llu bytes, none at %llu", shown(key_of(full)).c_str(),
                        static_cast<unsigned long long>(length_bytes), static_cast<unsigned long long>(offset_bytes))};
}

void copy_bytes(const value& from, value& into) {
  auto rest = from.spans();
  std::size_t at = 0;
  for (std::span<std::byte> to : into.spans()) {
    while (!to.empty() && at < rest.size()) {
      const std::size_t size = std::min(to.size(), rest[at].size());
      std::memcpy(to.data(), rest[at].data(), size);
      to = to.subspan(size);
      rest[at] = rest[at].subspan(size);
      if (rest[at].empty()) ++at;
    }
  }
}

failure no_key(std::string_view full) { return failure{ENOENT, "store: no key " + shown(key_of(full))}; }

}  // namespace

std::uint32_t crc_of(const value& what) {
  std::uint32_t crc = 0;
  for (const auto& piece : what.spans()) crc = arch::crc32c(piece.data(), piece.size(), crc);
  return crc;
}

std::string engine::impl::place_on_disk(const value& what) const {
  const segment& first = what.on_disk.front();
  const std::uint64_t file_bytes = options.extent_file_bytes;
  return format("extent file %06llu at %llu%s", static_cast<unsigned long long>(first.offset_bytes / file_bytes),
                static_cast<unsigned long long>(first.offset_bytes % file_bytes),
                what.on_disk.size() > 1 ? " and others" : "");
}

status engine::impl::check_stored(const pool_state& pool, const std::string& full, const value& what, std::uint32_t crc) {
  status same = check_crc(pool, full, what, crc, place_on_disk(what));
  if (!same) count(state.checksum_errors);
  return same;
}

status engine::impl::check_there(const pool_state& pool, const std::string& full, const value& what) {
  const auto why = space->why_lost(what.on_disk);
  if (!why) return {};
  count(state.checksum_errors);
  return failure{EBADMSG, "store: pool " + shown(pool.name) + ", key " + shown(key_of(full)) +
                              ": its value is lost: " + *why + "; put it again, or restore a backup"};
}

value_ref engine::impl::acquire_cached(const pool_state& pool, const std::string& full) {
  table::shard& shard = values->of(full);
  std::lock_guard lock(shard.mutex);
  entry* at = shard.find(full);
  if (at == nullptr || !at->current || !is_in_place(pool, *at->current)) return nullptr;
  shard.touch(*at);
  return at->current;
}

result<value_ref> engine::impl::acquire(const pool_state& pool, const std::string& full, deadline_t until) {
  std::shared_ptr<load> mine;
  std::shared_ptr<load> others;
  value_ref found, from;  // what the table has; null `from`: see the index
  table::shard& shard = values->of(full);
  {
    std::lock_guard lock(shard.mutex);
    entry* at = shard.find(full);
    if (at != nullptr && at->current && is_in_place(pool, *at->current)) {
      shard.touch(*at);
      count(state.hits);
      return at->current;
    }
    if (at != nullptr && at->loading) others = at->loading;
    if (at != nullptr && at->current) found = at->current;
    if (at != nullptr && at->current && (at->is_volatile || !at->current->in_memory())) from = at->current;
    // Beside a commit only for this reader: what it finds may be the old value.
    if (!others && (at == nullptr || !at->committing)) {
      mine = std::make_shared<load>();
      shard.need(full).loading = mine;
    }
  }
  if (others) {
    std::unique_lock wait(others->mutex);
    others->finished.wait(wait, [&] { return others->done; });
    if (others->loaded) return others->loaded;
    return others->why;
  }
  count(state.misses);
  bool is_small = false;
  auto loaded = !from               ? read_indexed(pool, full, until, is_small)
                : from->in_memory() ? copy_in_place(pool, full, *from, until)
                                    : read_extents_of(pool, full, *from, until);
  from.reset();
  if (!mine) return loaded;
  {
    std::lock_guard lock(shard.mutex);
    entry* at = shard.find(full);
    if (at != nullptr && at->loading == mine) {
      at->loading.reset();
      if (loaded && at->current == found) shard.set_current(*at, *loaded);
      shard.drop_if_empty(*at);
    }
  }
  std::lock_guard tell(mine->mutex);
  mine->done = true;
  if (loaded) mine->loaded = *loaded;
  else mine->why = loaded.error();
  mine->finished.notify_all();
  return loaded;
}

placement engine::impl::read_place(const pool_state& pool, durability level) const {
  placement where = place_of(pool, level);
  where.for_read = true;
  return where;
}

// A value that only memory knows, and whose pool's values lie in other memory now. Whoever could write there until now may
// have done so.
result<value_ref> engine::impl::copy_in_place(const pool_state& pool, const std::string& full, const value& from,
                                              deadline_t until) {
  auto made = make_value(from.length_bytes, until, read_place(pool, from.level));
  if (!made) return made;
  value& into = **made;
  into.version = from.version, into.crc = from.crc, into.user_flags = from.user_flags.load();
  into.written_unix_ns = from.written_unix_ns, into.level = from.level;
  copy_bytes(from, into);
  if (status same = verify(pool, full, into); !same) return std::move(same).error();
  return made;
}

void engine::impl::place_pool(pool_state& pool) {
  const bool apart = options.keeps_apart && options.keeps_apart(pool.info());
  if (pool.is_apart.exchange(apart) == apart || !values) return;
  std::vector<std::string> volatile_ones;
  for (std::size_t i = 0; i < table::kShards; ++i) {
    std::vector<value_ref> gone;  // let go of behind the lock
    table::shard& shard = values->at(i);
    std::lock_guard lock(shard.mutex);
    for (auto next = shard.entries.begin(); next != shard.entries.end();) {
      entry& at = next->second;
      ++next;
      if (pool_of(*at.key) != pool.id || !at.current || !at.current->in_memory() || is_in_place(pool, *at.current)) continue;
      if (at.is_volatile) {
        volatile_ones.push_back(*at.key);
      } else if (!at.committing && !at.loading) {
        gone.push_back(at.current);
        shard.set_current(at, nullptr);
        shard.drop_if_empty(at);
      }
    }
  }
  // What does not find room now is moved by who reads it next.
  for (const std::string& full : volatile_ones) (void)acquire(pool, full, kNoWait).ok();
}

result<value_ref> engine::impl::read_indexed(const pool_state& pool, const std::string& full, deadline_t until,
                                             bool& is_small) {
  const extents::reading guard(*space);  // before the record is read: its extents stay what they are
  const auto stored = records->get(family::values, full);
  if (!stored) return stored.error();
  if (!*stored) return no_key(full);
  const auto record = decode_value(**stored);
  if (!record) return failure{EUCLEAN, "store: the record of key " + shown(key_of(full)) + " is damaged"};
  value from(*memory, *space);
  from.version = record->version, from.length_bytes = record->length_bytes, from.crc = record->crc;
  from.user_flags = record->user_flags, from.written_unix_ns = record->written_unix_ns, from.level = record->level;
  if (record->large()) {
    from.on_disk = record->extents;
    return read_extents_of(pool, full, from, until);
  }
  is_small = true;
  auto made = make_value(record->length_bytes, until, read_place(pool, from.level));
  if (!made) return made;
  value& into = **made;
  into.version = from.version, into.crc = from.crc, into.user_flags = record->user_flags;
  into.written_unix_ns = from.written_unix_ns, into.level = from.level;
  std::string_view rest = record->small_value;
  for (const auto& piece : into.spans()) {
    std::memcpy(piece.data(), rest.data(), piece.size());
    rest.remove_prefix(piece.size());
  }
  if (status same = check_crc(pool, full, into, crc_of(into), "in the index"); !same) {
    count(state.checksum_errors);
    return std::move(same).error();
  }
  return made;
}

result<value_ref> engine::impl::read_extents_of(const pool_state& pool, const std::string& full, const value& from,
                                                deadline_t until) {
  if (status there = check_there(pool, full, from); !there) return std::move(there).error();
  auto made = make_value(from.length_bytes, until, read_place(pool, from.level));
  if (!made) return made;
  value& into = **made;
  into.version = from.version, into.crc = from.crc, into.user_flags = from.user_flags.load();
  into.written_unix_ns = from.written_unix_ns, into.level = from.level;
  if (!from.owns_extents) into.on_disk = from.on_disk;
  const auto pieces = into.spans();
  if (status read = files->read(space->blocks(from.on_disk, pieces)); !read)
    return failure{read.error().code, "store: pool " + shown(pool.name) + ", key " + shown(key_of(full)) + ", " +
                                          place_on_disk(from) + ": " + read.error().message};
  if (status same = check_stored(pool, full, from, crc_of(into)); !same) return std::move(same).error();
  return made;
}

status engine::impl::verify(const pool_state& pool, const std::string& full, const value& what) {
  status same = check_crc(
      pool, full, what, crc_of(what),
      format("arena at %llu", static_cast<unsigned long long>(what.segments.empty() ? 0 : what.segments[0].offset_bytes)));
  if (!same) count(state.checksum_errors);
  return same;
}

result<value_info> engine::impl::stat(const std::string& full) {
  {
    table::shard& shard = values->of(full);
    std::lock_guard lock(shard.mutex);
    const entry* at = shard.find(full);
    if (at != nullptr && at->current) return at->current->info();
  }
  const auto stored = records->get(family::values, full);
  if (!stored) return stored.error();
  if (!*stored) return no_key(full);
  const auto record = decode_value(**stored);
  if (!record) return failure{EUCLEAN, "store: the record of key " + shown(key_of(full)) + " is damaged"};
  return value_info{record->version,         record->length_bytes, record->crc, record->user_flags,
                    record->written_unix_ns, record->level,        tier::disk};
}

result<value_info> engine::stat(pool_id pool, std::string_view key) {
  auto found = impl_->need_pool(pool);
  if (!found) return std::move(found).error();
  if (status good = impl_->check_key(key); !good) return std::move(good).error();
  return impl_->stat(full_key(pool, key));
}

// A value that memory does not hold.
result<get_result> engine::impl::get_in_windows(const pool_ref& pool, const std::string& full, std::span<std::byte> out,
                                                get_options how) {
  how.length_bytes = out.size();
  auto reader = open_reader(pool, full, how);
  if (!reader) return std::move(reader).error();
  get_result made;
  made.info = (*reader)->info();
  if (how.offset_bytes > made.info.length_bytes) return behind_the_end(full, made.info.length_bytes, how.offset_bytes);
  for (;;) {
    const auto window = (*reader)->next();
    if (!window) return window.error();
    if (window->empty()) return made;
    std::memcpy(out.data() + made.copied_bytes, window->data(), window->size());
    made.copied_bytes += window->size();
  }
}

result<get_result> engine::get(pool_id pool, std::string_view key, std::span<std::byte> out, const get_options& options) {
  auto found = impl_->need_pool(pool);
  if (!found) return std::move(found).error();
  if (status good = impl_->check_key(key); !good) return std::move(good).error();
  const std::string full = full_key(pool, key);
  value_ref now = impl_->acquire_cached(**found, full);
  get_result made;
  if (now) {
    count(impl_->state.hits);
    made.info = now->info();
  } else {
    auto loaded = impl_->acquire(**found, full, options.deadline);
    if (loaded.code() == EFBIG) return impl_->get_in_windows(*found, full, out, options);
    if (loaded.code() == ENOSPC) {  // past the memory tier, unless the value lies in the index
      auto past = impl_->get_in_windows(*found, full, out, options);
      if (past || past.code() != EAGAIN) return past;
    }
    if (!loaded) {
      count(impl_->state.failed);
      return std::move(loaded).error();
    }
    now = std::move(*loaded);
    made.info = now->info();
    made.info.where = tier::disk;
  }
  if (options.offset_bytes > now->length_bytes) return behind_the_end(full, now->length_bytes, options.offset_bytes);
  if (options.verify || (*found)->options()->verify_reads) {
    if (status same = impl_->verify(**found, full, *now); !same) return std::move(same).error();
  }
  std::uint64_t skip = options.offset_bytes;
  for (std::span<std::byte> piece : now->spans()) {
    if (skip >= piece.size()) {
      skip -= piece.size();
      continue;
    }
    piece = piece.subspan(skip);
    skip = 0;
    const std::size_t size = std::min(piece.size(), out.size() - made.copied_bytes);
    std::memcpy(out.data() + made.copied_bytes, piece.data(), size);
    made.copied_bytes += size;
  }
  count(impl_->state.gets);
  count(impl_->state.get_bytes, made.copied_bytes);
  return made;
}

// ---- Pins
// ------------------------------------------------------------------------------------------------------------------------

result<pinned_value> engine::impl::pin(session_id session, const pool_state& pool, const std::string& full,
                                       const get_options& how, value_ref what) {
  if (how.verify || pool.options()->verify_reads) {
    if (status same = verify(pool, full, *what); !same) return std::move(same).error();
  }
  pinned_value made;
  made.info = what->info();
  made.segments = what->segments;
  made.pin = owners.add(session, std::move(what));
  if (made.pin == 0) return failure{EBADF, "store: no such session"};
  count(state.gets);
  count(state.get_bytes, made.info.length_bytes);
  return made;
}

result<pinned_value> engine::impl::load_and_pin(session_id session, const pool_ref& pool, const std::string& full,
                                                const get_options& how) {
  if (how.past_memory && how.or_reader) {
    if (auto reader = open_reader(pool, full, how)) return by_reader(*std::move(reader));
  }
  auto now = acquire(*pool, full, how.deadline);
  if (now) return pin(session, *pool, full, how, std::move(*now));
  const bool no_room = now.code() == ENOSPC;
  if ((now.code() != EFBIG && !no_room) || !how.or_reader) return std::move(now).error();
  auto reader = open_reader(pool, full, how);
  // Replaced meanwhile by one that memory holds.
  if (reader.code() == EAGAIN && !no_room) return load_and_pin(session, pool, full, how);
  if (!reader) return no_room ? std::move(now).error() : std::move(reader).error();
  return by_reader(*std::move(reader));
}

pinned_value engine::impl::by_reader(std::shared_ptr<value_reader> reader) {
  pinned_value made;
  made.info = reader->info();
  made.reader = std::move(reader);
  return made;
}

result<pinned_value> engine::lookup(session_id session, pool_id pool, std::string_view key, const get_options& options) {
  auto found = impl_->need_pool(pool);
  if (!found) return std::move(found).error();
  if (status good = impl_->check_key(key); !good) return std::move(good).error();
  const std::string full = full_key(pool, key);
  return impl_->load_and_pin(session, *found, full, options);
}

void engine::lookup_async(session_id session, pool_id pool, std::string_view key, const get_options& options,
                          completion<pinned_value> done) {
  auto found = impl_->need_pool(pool);
  if (!found) return done(std::move(found).error());
  if (status good = impl_->check_key(key); !good) return done(good.error());
  std::string full = full_key(pool, key);
  if (value_ref now = options.past_memory ? nullptr : impl_->acquire_cached(**found, full)) {
    count(impl_->state.hits);
    return done(impl_->pin(session, **found, full, options, std::move(now)));
  }
  auto shared = std::make_shared<completion<pinned_value>>(std::move(done));
  const bool taken = impl_->helpers->run_later([of = impl_.get(), session, in = *found, full = std::move(full), options,
                                                shared] { (*shared)(of->load_and_pin(session, in, full, options)); });
  if (!taken) (*shared)(failure{ESHUTDOWN, "store: closed"});
}

bool engine::is_apart(std::span<const segment> pieces) const noexcept { return impl_->memory->is_apart(pieces); }
bool engine::holds_memory(session_id session) const { return impl_->owners.holds_any(session); }

status engine::unpin(session_id session, pin_id pin) {
  if (!impl_->owners.drop_pin(session, pin)) return failure{EBADF, "store: no such pin in this session"};
  return {};
}

}  // namespace pl::store
