// SPDX-License-Identifier: Apache-2.0
// Gets, pins, and the loading of values from disk.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>

#include "arch/crc32c.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

status check_crc(const pool_state& pool, std::string_view full, const value& stored, std::uint32_t found,
                 const std::string& place) {
  if (found == stored.crc) return {};
  return failure{EBADMSG, format("store: pool %s, key %s, version %llu, %s: checksum is 0x%08x, should be 0x%08x",
                                 shown(pool.name).c_str(), shown(key_of(full)).c_str(),
                                 static_cast<unsigned long long>(stored.version), place.c_str(), found, stored.crc)};
}

failure behind_the_end(std::string_view full, std::uint64_t length_bytes, std::uint64_t offset_bytes) {
  return failure{EINVAL,
                 format("store: key %s has %llu bytes, so offset %llu is beyond its end", shown(key_of(full)).c_str(),
                        static_cast<unsigned long long>(length_bytes), static_cast<unsigned long long>(offset_bytes))};
}

void copy_bytes(const value& source, value& destination) {
  auto rest = source.spans();
  std::size_t offset = 0;
  for (std::span<std::byte> target : destination.spans()) {
    while (!target.empty() && offset < rest.size()) {
      const std::size_t size = std::min(target.size(), rest[offset].size());
      std::memcpy(target.data(), rest[offset].data(), size);
      target = target.subspan(size);
      rest[offset] = rest[offset].subspan(size);
      if (rest[offset].empty()) ++offset;
    }
  }
}

failure no_key(std::string_view full) { return failure{ENOENT, "store: no key " + shown(key_of(full))}; }

}  // namespace

std::uint32_t crc_of(const value& stored) {
  std::uint32_t crc = 0;
  for (const auto& piece : stored.spans()) crc = arch::crc32c(piece.data(), piece.size(), crc);
  return crc;
}

std::string engine::impl::place_on_disk(const value& stored) const {
  const segment& first = stored.on_disk().front();
  const std::uint64_t file_bytes = options.extent_file_bytes;
  return format("extent file %06llu at %llu%s", static_cast<unsigned long long>(first.offset_bytes / file_bytes),
                static_cast<unsigned long long>(first.offset_bytes % file_bytes),
                stored.on_disk().size() > 1 ? " and others" : "");
}

status engine::impl::check_stored(const pool_state& pool, const std::string& full, const value& stored, std::uint32_t crc) {
  status same = check_crc(pool, full, stored, crc, place_on_disk(stored));
  if (!same) count(state.checksum_errors);
  return same;
}

status engine::impl::check_present(const pool_state& pool, const std::string& full, const value& stored) {
  const auto reason = space->why_lost(stored.on_disk());
  if (!reason) return {};
  count(state.checksum_errors);
  return failure{EBADMSG, "store: pool " + shown(pool.name) + ", key " + shown(key_of(full)) +
                              ": its value is lost: " + *reason + "; put it again, or restore a backup"};
}

value_ref engine::impl::hold_cached(table::shard& shard, const pool_state& pool, std::string_view full, std::size_t hash) {
  entry* key_entry = shard.find(full, hash);
  if (key_entry == nullptr || !key_entry->current || !is_in_place(pool, *key_entry->current)) return nullptr;
  if (key_entry->current->expires_ns() != 0 && key_entry->current->has_expired(monotonic_ns())) return nullptr;
  shard.touch(*key_entry);
  return key_entry->current;
}

value_ref engine::impl::acquire_cached(const pool_state& pool, const std::string& full) {
  const std::size_t hash = entry_map::hash_of(full);
  table::shard& shard = values->shard_with(hash);
  std::lock_guard lock(shard.mutex);
  return hold_cached(shard, pool, full, hash);
}

result<value_ref> engine::impl::acquire(const pool_state& pool, const std::string& full, deadline_t deadline) {
  std::shared_ptr<load> mine;
  std::shared_ptr<load> others;
  value_ref found, source;  // the table's entry; null `source`: read the index
  table::shard& shard = values->shard_of(full);
  {
    std::lock_guard lock(shard.mutex);
    entry* key_entry = shard.find(full);
    if (key_entry != nullptr && key_entry->current && key_entry->current->expires_ns() != 0 &&
        key_entry->current->has_expired(monotonic_ns()))
      return no_key(full);
    if (key_entry != nullptr && key_entry->current && is_in_place(pool, *key_entry->current)) {
      shard.touch(*key_entry);
      count(state.hits);
      return key_entry->current;
    }
    if (key_entry != nullptr) others = shard.load_of(*key_entry);
    if (key_entry != nullptr && key_entry->current) found = key_entry->current;
    if (key_entry != nullptr && key_entry->current && (key_entry->is_volatile || !key_entry->current->in_memory()))
      source = key_entry->current;
    // The result of a load during a commit serves only this reader, because it may be the old value.
    if (!others && (key_entry == nullptr || !key_entry->committing)) {
      mine = std::make_shared<load>();
      shard.set_load(shard.need(full), mine);
    }
  }
  if (others) {
    std::unique_lock wait(others->mutex);
    others->finished.wait(wait, [&] { return others->done; });
    if (others->loaded) return others->loaded;
    return others->reason;
  }
  count(state.misses);
  bool is_small = false;
  auto loaded = !source               ? read_indexed(pool, full, deadline, is_small)
                : source->in_memory() ? copy_in_place(pool, full, *source, deadline)
                                      : read_extents_of(pool, full, *source, deadline);
  source.reset();
  if (!mine) return loaded;
  {
    std::lock_guard lock(shard.mutex);
    entry* key_entry = shard.find(full);
    if (key_entry != nullptr && shard.load_of(*key_entry) == mine) {
      shard.set_load(*key_entry, nullptr);
      // A value without bytes is in no eviction list, so its entry would stay for ever.
      if (loaded && key_entry->current == found && !(*loaded)->segments().empty()) shard.set_current(*key_entry, *loaded);
      shard.drop_if_empty(*key_entry);
    }
  }
  std::lock_guard tell(mine->mutex);
  mine->done = true;
  if (loaded) mine->loaded = *loaded;
  else mine->reason = loaded.error();
  mine->finished.notify_all();
  return loaded;
}

placement engine::impl::read_place(const pool_state& pool, durability level) const {
  placement place = place_of(pool, level);
  place.for_read = true;
  return place;
}

// Moves a value that only memory holds to where its pool's values lie now. Its bytes are copied first, because clients
// could write to its old place.
result<value_ref> engine::impl::copy_in_place(const pool_state& pool, const std::string& full, const value& source,
                                              deadline_t deadline) {
  auto made = make_value(source.length_bytes, deadline, read_place(pool, source.level));
  if (!made) return made;
  value& destination = **made;
  destination.take_identity(source);
  copy_bytes(source, destination);
  if (status same = verify(pool, full, destination); !same) return std::move(same).error();
  return made;
}

void engine::impl::place_pool(pool_state& pool) {
  const bool apart = options.needs_private_arena && options.needs_private_arena(pool.info());
  if (pool.is_in_private_arena.exchange(apart) == apart || !values) return;
  std::vector<std::string> volatile_ones;
  for (std::size_t i = 0; i < table::kShards; ++i) {
    std::vector<value_ref> gone;  // released after the lock
    table::shard& shard = values->shard_at(i);
    std::lock_guard lock(shard.mutex);
    shard.entries.visit([&](entry& key_entry) {
      if (pool_of(key_entry.key()) != pool.id || !key_entry.current || !key_entry.current->in_memory() ||
          is_in_place(pool, *key_entry.current))
        return;
      if (key_entry.is_volatile) {
        volatile_ones.emplace_back(key_entry.key());
      } else if (!key_entry.committing && !key_entry.loading) {
        gone.push_back(key_entry.current);
        shard.set_current(key_entry, nullptr);
        shard.drop_if_empty(key_entry);
      }
    });
  }
  // A value that finds no room now moves when it is next read.
  for (const std::string& full : volatile_ones) (void)acquire(pool, full, kNoWait).ok();
}

result<value_ref> engine::impl::read_indexed(const pool_state& pool, const std::string& full, deadline_t deadline,
                                             bool& is_small) {
  const extents::reading guard(*space);  // taken before the record is read, so its extents stay valid
  const auto stored = records->get(family::values, full);
  if (!stored) return stored.error();
  if (!*stored) return no_key(full);
  const auto record = decode_value(**stored);
  if (!record) return failure{EUCLEAN, "store: the record of key " + shown(key_of(full)) + " is damaged"};
  value source(*home, record->length_bytes);
  source.version = record->version, source.crc = record->crc;
  source.user_flags = record->user_flags, source.written_unix_ns = record->written_unix_ns, source.level = record->level;
  source.join_owner(record->owner);
  if (record->large()) {
    source.set_on_disk(record->extents);
    return read_extents_of(pool, full, source, deadline);
  }
  is_small = true;
  auto made = make_value(record->length_bytes, deadline, read_place(pool, source.level));
  if (!made) return made;
  value& destination = **made;
  destination.take_identity(source);
  std::string_view rest = record->small_value;
  for (const auto& piece : destination.spans()) {
    std::memcpy(piece.data(), rest.data(), piece.size());
    rest.remove_prefix(piece.size());
  }
  if (status same = check_crc(pool, full, destination, crc_of(destination), "in the index"); !same) {
    count(state.checksum_errors);
    return std::move(same).error();
  }
  return made;
}

result<value_ref> engine::impl::read_extents_of(const pool_state& pool, const std::string& full, const value& source,
                                                deadline_t deadline) {
  if (status present = check_present(pool, full, source); !present) return std::move(present).error();
  auto made = make_value(source.length_bytes, deadline, read_place(pool, source.level));
  if (!made) return made;
  value& destination = **made;
  destination.take_identity(source);
  if (!source.owns_extents && !source.on_disk().empty()) destination.set_on_disk(source.on_disk());
  auto pieces = destination.spans();
  const bool shares_block = source.length_bytes <= store::arena::kSlotBytes;
  const block_buffer apart(1);
  if (!apart) return failure{ENOMEM, "store: no memory for a block"};
  if (shares_block) pieces = {apart.block(0)};
  if (status read = files->read(space->blocks(source.on_disk(), pieces)); !read)
    return failure{read.error().code, "store: pool " + shown(pool.name) + ", key " + shown(key_of(full)) + ", " +
                                          place_on_disk(source) + ": " + read.error().message};
  if (shares_block) std::memcpy(destination.spans().front().data(), apart.block(0).data(), source.length_bytes);
  if (status same = check_stored(pool, full, source, crc_of(destination)); !same) return std::move(same).error();
  return made;
}

status engine::impl::verify(const pool_state& pool, const std::string& full, const value& stored) {
  status same =
      check_crc(pool, full, stored, crc_of(stored),
                format("arena at %llu",
                       static_cast<unsigned long long>(stored.segments().empty() ? 0 : stored.segments()[0].offset_bytes)));
  if (!same) count(state.checksum_errors);
  return same;
}

result<value_info> engine::impl::stat(const std::string& full) {
  {
    table::shard& shard = values->shard_of(full);
    std::lock_guard lock(shard.mutex);
    const entry* key_entry = shard.find(full);
    if (key_entry != nullptr && key_entry->current) {
      if (key_entry->current->expires_ns() != 0 && key_entry->current->has_expired(monotonic_ns())) return no_key(full);
      return key_entry->current->info();
    }
  }
  const auto stored = records->get(family::values, full);
  if (!stored) return stored.error();
  if (!*stored) return no_key(full);
  const auto record = decode_value(**stored);
  if (!record) return failure{EUCLEAN, "store: the record of key " + shown(key_of(full)) + " is damaged"};
  return value_info{record->version,         record->length_bytes, record->crc, record->user_flags,
                    record->written_unix_ns, record->level,        tier::disk,  record->owner};
}

result<value_info> engine::stat(pool_id pool, std::string_view key) {
  auto found = impl_->need_pool(pool);
  if (!found) return std::move(found).error();
  if (status good = impl_->check_key(key); !good) return std::move(good).error();
  return impl_->stat(full_key(pool, key));
}

// Reads a value that memory does not hold.
result<get_result> engine::impl::get_in_windows(const pool_ref& pool, const std::string& full, std::span<std::byte> out,
                                                get_options read_options) {
  read_options.length_bytes = out.size();
  auto reader = open_reader(pool, full, read_options);
  if (!reader) return std::move(reader).error();
  get_result made;
  made.info = (*reader)->info();
  if (read_options.offset_bytes > made.info.length_bytes)
    return behind_the_end(full, made.info.length_bytes, read_options.offset_bytes);
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
  if (now) count((*found)->hits);
  get_result made;
  if (now) {
    count(impl_->state.hits);
    made.info = now->info();
  } else {
    auto loaded = impl_->acquire(**found, full, options.deadline);
    if (loaded.code() == EFBIG) return impl_->get_in_windows(*found, full, out, options);
    if (loaded.code() == ENOSPC) {  // bypasses the memory tier, unless the value lies in the index
      auto past = impl_->get_in_windows(*found, full, out, options);
      if (past || past.code() != EAGAIN) return past;
    }
    if (loaded.code() == ENOENT) count((*found)->misses);
    if (!loaded) {
      count(impl_->state.failed);
      return std::move(loaded).error();
    }
    count((*found)->hits);
    impl_->trim_cache(**found, 0);
    now = std::move(*loaded);
    made.info = now->info();
    made.info.location = tier::disk;
  }
  if (options.offset_bytes > now->length_bytes) return behind_the_end(full, now->length_bytes, options.offset_bytes);
  if (options.verify || (*found)->verifies_reads()) {
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
                                       const get_options& read_options, value_ref stored) {
  if (read_options.verify || pool.verifies_reads()) {
    if (status same = verify(pool, full, *stored); !same) return std::move(same).error();
  }
  pinned_value made;
  made.info = stored->info();
  made.segments = stored->segments().copy();
  made.pin = owners.add(session, std::move(stored));
  if (made.pin == 0) return failure{EBADF, "store: no such session"};
  count(state.gets);
  count(state.get_bytes, made.info.length_bytes);
  return made;
}

result<pinned_value> engine::impl::load_and_pin(session_id session, const pool_ref& pool, const std::string& full,
                                                const get_options& read_options) {
  if (read_options.bypass_memory && read_options.or_reader) {
    if (auto reader = open_reader(pool, full, read_options)) {
      count(pool->hits);
      return by_reader(*std::move(reader));
    }
  }
  auto now = acquire(*pool, full, read_options.deadline);
  if (now.code() != ENOENT) count(pool->hits);
  else count(pool->misses);
  if (now) trim_cache(*pool, 0);
  if (now) return pin(session, *pool, full, read_options, std::move(*now));
  const bool no_room = now.code() == ENOSPC;
  if ((now.code() != EFBIG && !no_room) || !read_options.or_reader) return std::move(now).error();
  auto reader = open_reader(pool, full, read_options);
  // The value was replaced meanwhile by one that memory holds.
  if (reader.code() == EAGAIN && !no_room) return load_and_pin(session, pool, full, read_options);
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
  if (value_ref now = options.bypass_memory ? nullptr : impl_->acquire_cached(**found, full)) {
    count(impl_->state.hits);
    count((*found)->hits);
    return done(impl_->pin(session, **found, full, options, std::move(now)));
  }
  auto shared = std::make_shared<completion<pinned_value>>(std::move(done));
  const bool taken =
      impl_->helpers->run_later([owner = impl_.get(), session, opened_pool = *found, full = std::move(full), options,
                                 shared] { (*shared)(owner->load_and_pin(session, opened_pool, full, options)); });
  if (!taken) (*shared)(failure{ESHUTDOWN, "store: closed"});
}

bool engine::is_in_private_arena(std::span<const segment> pieces) const noexcept {
  return impl_->memory->is_in_private_arena(pieces);
}
bool engine::holds_memory(session_id session) const { return impl_->owners.holds_any(session); }

status engine::unpin(session_id session, pin_id pin) {
  if (!impl_->owners.drop_pin(session, pin)) return failure{EBADF, "store: no such pin in this session"};
  return {};
}

}  // namespace pl::store
