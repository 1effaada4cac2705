// SPDX-License-Identifier: Apache-2.0
// Opening, closing, pools.
#include "store/engine/engine.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <future>
#include <random>
#include <system_error>
#include <thread>

#include "base/clock.hpp"
#include "base/folder_list.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "os/blocked_signals.hpp"
#include "store/engine/bytes.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/path_failure.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

constexpr std::uint64_t kOpenBytes = std::uint64_t{2} << 20;  // a manifest, options, the beginning of a log
constexpr std::uint64_t kMaxReserveBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kMinExtentFileBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kMaxExtentFileBytes = std::uint64_t{1} << 30;

status check_options(const engine_options& options) {
  if (options.directory.empty()) return failure{EINVAL, "store: no directory given"};
  if (options.chunk_bytes < (4u << 20) || (options.chunk_bytes & (options.chunk_bytes - 1)) != 0)
    return failure{EINVAL, "store: chunk_bytes is a power of two of at least 4 MiB"};
  if (options.arena_bytes == 0 || options.arena_bytes > kMaxValueBytes * 64)
    return failure{EINVAL, "store: arena_bytes is 1 to 4 TiB"};
  if (options.extent_file_bytes != kByDisk &&
      (options.extent_file_bytes < (1u << 20) || options.extent_file_bytes % kBlockBytes != 0))
    return failure{EINVAL, "store: extent_file_bytes is at least 1 MiB and a multiple of 4096"};
  if (options.small_value_bytes > (1u << 20)) return failure{EINVAL, "store: small_value_bytes is at most 1 MiB"};
  return {};
}

status check_pool_options(const pool_options& options) {
  if (options.level == durability::pool_default) return failure{EINVAL, "store: a pool needs a durability of its own"};
  if (status good = check_given(options.level); !good) return good;
  if (options.tags.size() > 64 * 1024) return failure{EFBIG, "store: a pool's tags are at most 64 KiB"};
  return {};
}

}  // namespace

engine::engine(std::unique_ptr<impl> made) : impl_(std::move(made)) {}

engine::~engine() { (void)impl_->close(); }

result<std::unique_ptr<engine>> engine::open(engine_options options) {
  if (status good = check_options(options); !good) return std::move(good).error();
  auto made = std::make_unique<impl>(std::move(options));
  try {
    if (status opened = made->open(); !opened) return std::move(opened).error();
  } catch (const std::system_error& reason) {  // a thread of the index's or of ours
    if (reason.code() != std::errc::resource_unavailable_try_again) throw;
    return no_thread("commits and writes values");
  }
  return std::unique_ptr<engine>(new engine(std::move(made)));
}

engine::impl::~impl() {
  (void)close();
  helpers.reset();
  writer.reset();
  commits.reset();
  remembered.reset();
  records.reset();  // seals its files; until then the folder is locked
  if (lock_fd >= 0) ::close(lock_fd);
}

status engine::impl::lock_folder() {
  std::error_code error;
  if (!options.read_only) {
    std::filesystem::create_directories(options.directory + "/extents", error);
    if (error) return failure{error.value(), "store: " + options.directory + ": " + error.message()};
    std::filesystem::permissions(options.directory, std::filesystem::perms::owner_all, error);
    if (error) return failure{error.value(), "store: " + options.directory + ": " + error.message()};
  }
  const std::string path = options.directory + "/lock";
  const auto opened = open_regular_file(path, options.read_only ? O_RDONLY : O_RDWR | O_CREAT);
  // A copy of a store has no lock file, and nobody writes to it.
  if (options.read_only && opened.code() == ENOENT) return {};
  if (!opened) return path_failure(path, opened.error());
  lock_fd = *opened;
  if (::flock(lock_fd, (options.read_only ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0)
    return failure{errno == EWOULDBLOCK ? EBUSY : errno, "store: " + options.directory + ": another process has it open"};
  return {};
}

// Opens the index and new extent files by name. If somebody moved the folder away and put another store in its place,
// both stores would write into that one.
status engine::impl::check_folder() {
  struct stat locked {
  }, named{};
  if (options.read_only || lock_fd < 0 || ::fstat(lock_fd, &locked) != 0) return {};
  const std::string path = options.directory + "/lock";
  const bool is_there = ::stat(path.c_str(), &named) == 0;
  if (is_there && named.st_dev == locked.st_dev && named.st_ino == locked.st_ino) return {};
  if (!is_there && errno != ENOENT && errno != ENOTDIR) return {};  // cannot be determined
  const failure lost{ENOENT, "store: " + options.directory +
                                 ": the folder was deleted, moved or replaced while the store was open; nothing is "
                                 "written any more: stop the store, put the folder back, and start it again"};
  state.fail(lost.message);
  return lost;
}

status engine::impl::open() {
  if (status locked = lock_folder(); !locked) return locked;
  if (options.files == nullptr) own_files = make_system_disk(options.huge_pages ? staging::never : staging::by_device);
  files = options.files != nullptr ? options.files : own_files.get();
  state.read_only = options.read_only;
  if (options.key_memory_bytes == 0) options.key_memory_bytes = default_key_memory_bytes();

  if (status room = check_room(); !room) return room;
  const auto disk_bytes = files->total_bytes(options.directory);
  scale_to_disk();
  const auto extent_files = list_folder(options.directory + "/extents");
  if (!extent_files && extent_files.code() != ENOENT)
    return path_failure(options.directory + "/extents", extent_files.error());
  auto opened = index::open({options.directory + "/index", options.index_cache_bytes, options.read_only, files->index_env(),
                             options.directory + "/commit.mark", files, extent_files && !extent_files->empty(),
                             disk_bytes ? *disk_bytes : ~std::uint64_t{0}});
  if (!opened) return std::move(opened).error();
  records = std::move(*opened);
  if (status read = read_format(); !read) return read;
  version_t ceiling = 1;
  if (status read = read_catalogue(ceiling); !read) return read;

  auto found = extents::open({options.directory + "/extents", options.extent_file_bytes, options.disk_limit_bytes,
                              options.disk_reserve_bytes, options.read_only, [this] { return check_folder(); }},
                             *files);
  if (!found) return std::move(found).error();
  space = std::move(*found);
  if (status read = read_extents(); !read) return read;

  auto mapped = store::arena::make(options.arena_bytes, options.chunk_bytes, options.huge_pages);
  if (!mapped) return std::move(mapped).error();
  memory = std::move(*mapped);
  home.emplace(value_storage{*memory, *space});
  values = std::make_unique<table>();
  for (const pool_info& pool : known.list()) place_pool(*known.find(pool.id));
  remembered = std::make_unique<requests>(*records);
  if (status read = remembered->load(); !read) return read;

  // All versions handed out so far lie below the ceiling, whether or not they were used.
  const version_t next = ceiling;
  if (!options.read_only) {
    ceiling += committer::kVersionsAhead;
    std::string raw;
    append_number(raw, ceiling);
    rocksdb::WriteBatch batch;
    records->put(batch, family::catalogue, committer::kCeilingKey, raw);
    if (status written = records->write(batch, true); !written) return written;
  }
  commits = std::make_unique<committer>(
      committer::parts{*records, *space, *values, known, writers, *remembered, state, options.on_point,
                       [this] {
                         (void)check_folder();
                         return files->free_bytes(options.directory);
                       },
                       options.disk_reserve_bytes / 2, options.group_wait_us, options.on_change, format_with_owners},
      next, ceiling);
  writer = std::make_unique<extent_writer>(
      extent_writer::parts{*space, state, options.on_point, [this] { return commits->sync_log(); },
                           [this](std::uint64_t bytes) { return give_up_cached_extents(bytes); }});
  helpers = std::make_unique<workers>(2);
  return {};
}

status engine::impl::read_format() {
  auto stored = records->get(family::catalogue, committer::kFormatKey);
  if (!stored) return std::move(stored).error();
  if (*stored) {
    const auto format_record = decode_format(**stored);
    if (!format_record) return failure{EUCLEAN, "store: " + options.directory + ": the index has no readable format record"};
    if (!format_record->is_known())
      return failure{ENOTSUP, format("store: %s has format %u, this program knows %u", options.directory.c_str(),
                                     format_record->number, kFormatWithOwners)};
    options.extent_file_bytes = format_record->file_bytes;
    name_format_with_owners(*format_record);
    identity = format("%016llx", static_cast<unsigned long long>(format_record->id_high));
    return {};
  }
  if (options.read_only) return failure{ENOENT, "store: " + options.directory + " holds no store"};
  std::random_device random;
  store_format fresh;
  fresh.file_bytes = options.extent_file_bytes;
  fresh.id_high = std::uint64_t{random()} << 32 | random();
  fresh.id_low = std::uint64_t{random()} << 32 | random();
  identity = format("%016llx", static_cast<unsigned long long>(fresh.id_high));
  name_format_with_owners(fresh);
  rocksdb::WriteBatch batch;
  records->put(batch, family::catalogue, committer::kFormatKey, encode(fresh));
  return records->write(batch, true);
}

status engine::impl::read_catalogue(version_t& ceiling) {
  std::optional<failure> damage;
  std::vector<pool_info> found;
  owned_counts owned;
  status scanned = records->scan(family::catalogue, "", "", true, [&](std::string_view key, std::string_view raw) {
    if (key == committer::kCeilingKey) {
      byte_reader reader(raw);
      ceiling = reader.number<version_t>();
      if (!reader.good_end()) damage = failure{EUCLEAN, "store: the version ceiling is damaged"};
    } else if (key.size() == 5 && key[0] == 'p') {
      auto pool = decode_pool(raw);
      if (!pool || pool_key(pool->id) != key)
        damage = failure{EUCLEAN, format("store: the record of pool %u is damaged", read_ordered(key.substr(1)))};
      else found.push_back(std::move(*pool));
    } else if (key == "i") {
      byte_reader reader(raw);
      last_pool = reader.number<pool_id>();
    } else if (status read = read_owner(key, raw, owned); !read) {
      damage = read.error();
    }
    return !damage;
  });
  if (!scanned) return scanned;
  if (damage) return *damage;
  for (pool_info& pool : found) {
    auto stored = records->get(family::catalogue, counts_key(pool.id));
    if (!stored) return std::move(stored).error();
    const auto counts = *stored ? decode_counts(**stored) : pool_counts{};
    if (!counts) return failure{EUCLEAN, "store: the counts of pool " + shown(pool.name) + " are damaged"};
    auto read = std::make_shared<pool_state>(std::move(pool), *counts);
    read->cache = cache_for(read->info());
    read->held.join(writers);
    for (const auto& [owner, held] : owned[read->id])
      if (!read->held.restore(owner, held))
        return failure{
            EUCLEAN, format("store: pool %s has values of owner %u, which has no record", shown(read->name).c_str(), owner)};
    known.add(std::move(read));
  }
  return {};
}

// Opening writes a manifest and a log. A disk without room for them is refused, because a half-written index does not
// open.
status engine::impl::check_room() const {
  const auto free = files->free_bytes(options.directory);
  if (options.read_only || !free || *free >= kOpenBytes) return {};
  return failure{ENOSPC,
                 format("store: %s: %llu bytes are free on its disk, opening it to write takes %s: make room, or serve "
                        "it with --read-only",
                        options.directory.c_str(), static_cast<unsigned long long>(*free), format_size(kOpenBytes).c_str())};
}

// The default reserves and allocation steps fit large disks; a small disk gets smaller ones.
void engine::impl::scale_to_disk() {
  const auto total = files->total_bytes(options.directory);
  const std::uint64_t disk_bytes = total ? *total : ~std::uint64_t{0};
  if (options.disk_reserve_bytes == kByDisk) options.disk_reserve_bytes = std::min(kMaxReserveBytes, disk_bytes / 20);
  if (options.extent_file_bytes == kByDisk)
    options.extent_file_bytes = std::clamp(std::bit_floor(disk_bytes / 16), kMinExtentFileBytes, kMaxExtentFileBytes);
}

// The files of these pieces are missing. Values that name exactly the same pieces are lost with them; any other overlap
// means that records contradict each other.
status engine::impl::take_lost_extents(std::string_view full, const std::vector<segment>& pieces) {
  const auto stored = records->get(family::values, full);
  if (!stored) return stored.error();
  const auto record = *stored ? decode_value(**stored) : std::nullopt;
  const bool same = record && encode_extents(record->extents) == encode_extents(pieces);
  for (const segment& piece : pieces) {
    const bool lost = same && !space->has_file(piece);
    if (status taken = lost ? space->take_lost(piece) : space->take(piece); !taken) return taken;
  }
  return {};
}

status engine::impl::read_extents() {
  std::optional<failure> damage;
  std::uint64_t lost = 0;
  std::string first_lost;
  status scanned = records->scan(family::extents, "", "", false, [&](std::string_view full, std::string_view raw) {
    const auto pieces = decode_extents(raw);
    if (!pieces) damage = failure{EUCLEAN, "the record of its extents is damaged"};
    const auto named = pieces.value_or(std::vector<segment>{});
    const bool is_there = std::all_of(named.begin(), named.end(), [&](const segment& one) { return space->has_file(one); });
    if (!is_there) {
      if (status taken = take_lost_extents(full, named); !taken) damage = taken.error();
    } else {
      for (const segment& piece : named)
        if (status taken = space->take(piece); !taken) damage = taken.error();
    }
    if (const auto cause = space->why_lost(named); cause && lost++ == 0) first_lost = *cause;
    if (damage)
      damage->message = "store: key " + shown(key_of(full)) + format(" of pool %u: ", pool_of(full)) + damage->message;
    return !damage;
  });
  if (!scanned) return scanned;
  if (damage) return *damage;
  if (lost != 0)
    PL_LOG(error, "store: %llu values are lost (%s): gets of them fail; `peerlane store check --data %s` lists them",
           static_cast<unsigned long long>(lost), first_lost.c_str(), options.directory.c_str());
  return {};
}

// After an attempt to recover from a full disk that failed, the index waits for a second before the next one. A stop that
// comes soon after room was freed waits for that. Otherwise the unsynced part would stay in the log, and the next start
// would have to recover what this stop can seal.
status engine::impl::sync_at_close() {
  constexpr std::uint64_t kEnoughBytes = std::uint64_t{16} << 20, kTimeoutNs = 15'000'000'000;
  const std::uint64_t begin_ns = monotonic_ns();
  for (;;) {
    status synced = commits->sync_log();
    if (synced || synced.code() != ENOSPC || monotonic_ns() - begin_ns > kTimeoutNs) return synced;
    const auto free = files->free_bytes(options.directory);
    if (!free || *free < kEnoughBytes) return synced;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

status engine::impl::close() {
  if (closed.exchange(true)) return {};
  if (helpers) helpers->stop();
  if (writer) writer->stop();
  if (!commits) return {};
  commits->stop();
  if (status ours = check_folder(); !ours) {
    (void)commits->sync_log();  // the log is open, wherever it lies
    return ours;
  }
  if (state.read_only) return {};
  if (status synced = sync_at_close(); !synced) return synced;
  const auto free = files->free_bytes(options.directory);
  return records->prepare_stop(free ? *free : 0);
}

result<pool_ref> engine::impl::need_pool(pool_id id) const {
  if (closed) return failure{ESHUTDOWN, "store: closed"};
  pool_ref found = known.find(id);
  if (!found) return failure{ENXIO, format("store: no pool with id %u", id)};
  return found;
}

status engine::impl::check_key(std::string_view key) const {
  if (key.empty()) return failure{EINVAL, "store: a key has at least one byte"};
  if (key.size() > kMaxKeyBytes) return failure{EFBIG, format("store: a key has at most %zu bytes", kMaxKeyBytes)};
  return {};
}

status engine::close() { return impl_->close(); }
const arena_info& engine::arena() const noexcept { return impl_->memory->info(); }
const std::string& engine::identity() const noexcept { return impl_->identity; }
status engine::forget_requests(const std::function<bool(std::uint16_t)>& selected) {
  if (status able = impl_->state.writable(); !able) return able;
  return impl_->remembered->forget(selected);
}
status engine::export_requests(const group_test& selected, std::size_t part_bytes,
                               const std::function<status(std::string)>& take) const {
  std::string part;
  status taken;
  const auto tell = [&](std::uint64_t client, const request_outcome& one) {
    if (!taken) return;
    append_number(part, client);
    append_text(part, encode(one));
    if (part.size() >= part_bytes) taken = take(std::exchange(part, {}));
  };
  if (status visited = impl_->remembered->each(selected, tell); !visited) return visited;
  if (!taken || part.empty()) return taken;
  return take(std::move(part));
}

status engine::remember_requests(std::string_view part, const group_test& selected) {
  auto unit = std::make_unique<commit_unit>();
  unit->type = commit_unit::kind::remember;
  for (byte_reader reader(part); !reader.good_end();) {
    const auto client = reader.number<std::uint64_t>();
    auto outcome = decode_outcome(reader.text());
    if (!reader.good() || client == 0 || !outcome || outcome->sequence == 0)
      return failure{EPROTO, "store: received data that is not a list of requests"};
    if (outcome->group == kAnyGroup || !selected(outcome->group)) continue;
    const request_key request{client, outcome->sequence, outcome->group};
    unit->outcomes.emplace_back(request, std::move(*outcome));
  }
  return unit->outcomes.empty() ? status() : impl_->commit_now(std::move(unit));
}

status engine::settle() {
  auto nothing = std::make_unique<commit_unit>();
  nothing->type = commit_unit::kind::remember;
  return impl_->commit_now(std::move(nothing));
}

status engine::impl::commit_now(unit_ref unit) {
  std::promise<status> answer;
  auto answered = answer.get_future();
  unit->done = [&](commit_unit& finished) { answer.set_value(finished.failed ? status(*finished.failed) : status()); };
  commits->enqueue(std::move(unit));
  return answered.get();
}

void engine::skip_versions(version_t count) noexcept { impl_->commits->skip_versions(count); }

std::string engine::read_only_reason() const { return impl_->state.reason(); }

engine_stats engine::stats() const {
  const health& counters = impl_->state;
  engine_stats made;
  made.puts = counters.puts, made.gets = counters.gets, made.erases = counters.erases, made.failed = counters.failed;
  made.put_bytes = counters.put_bytes, made.get_bytes = counters.get_bytes;
  made.hits = counters.hits, made.misses = counters.misses;
  made.evictions = counters.evictions, made.evicted_bytes = counters.evicted_bytes,
  made.spilled_bytes = counters.spilled_bytes;
  made.commits = counters.commits, made.committed = counters.committed, made.syncs = counters.syncs;
  made.early_writes = counters.early_writes;
  made.checksum_errors = counters.checksum_errors, made.repeated_requests = counters.repeated;
  made.arena_bytes = impl_->memory->info().size_bytes, made.arena_used_bytes = impl_->memory->used_bytes();
  made.disk_bytes = impl_->space->total_bytes(), made.disk_used_bytes = impl_->space->used_bytes();
  made.key_bytes = impl_->values->heap_bytes(), made.remembered_items = impl_->remembered->items();
  const auto held = impl_->owners.now();
  made.pins = held.pins, made.grants = held.grants, made.sessions = held.sessions;
  made.read_only = counters.read_only, made.full = counters.full;
  return made;
}

// ---- Pools
// -----------------------------------------------------------------------------------------------------------------

result<pool_info> engine::create_pool(std::string_view name, const pool_options& options) {
  if (name.empty() || name.size() > kMaxPoolNameBytes)
    return failure{EINVAL, format("store: a pool's name has 1 to %zu bytes", kMaxPoolNameBytes)};
  if (status good = check_pool_options(options); !good) return std::move(good).error();
  if (impl_->closed) return failure{ESHUTDOWN, "store: closed"};
  std::lock_guard lock(impl_->pools_mutex);
  if (status able = impl_->state.writable(); !able) return std::move(able).error();
  if (impl_->known.find(name)) return failure{EEXIST, "store: pool " + shown(name) + " exists"};
  if (impl_->known.count() >= kMaxPools) return failure{ENOSPC, format("store: at most %zu pools", kMaxPools)};
  pool_info made{impl_->last_pool + 1, std::string(name), options, 0, 0, unix_now_ns()};
  if (status good = impl_->check_terms(made); !good) return std::move(good).error();
  std::string last;
  append_number(last, made.id);
  rocksdb::WriteBatch batch;
  impl_->records->put(batch, family::catalogue, pool_key(made.id), encode(made));
  impl_->records->put(batch, family::catalogue, "i", last);
  if (status written = impl_->records->write(batch, true); !written) {
    impl_->state.note(written.error());
    return std::move(written).error();
  }
  impl_->last_pool = made.id;
  auto fresh = std::make_shared<pool_state>(made, pool_counts{});
  fresh->is_in_private_arena = impl_->options.needs_private_arena && impl_->options.needs_private_arena(made);
  fresh->cache = impl_->cache_for(made);
  fresh->held.join(impl_->writers);
  made = fresh->info();
  impl_->known.add(std::move(fresh));
  return made;
}

result<pool_info> engine::find_pool(std::string_view name) const {
  const pool_ref found = impl_->known.find(name);
  if (!found) return failure{ENXIO, "store: no pool " + shown(name)};
  return found->info();
}

result<pool_info> engine::pool(pool_id id) const {
  auto found = impl_->need_pool(id);
  if (!found) return std::move(found).error();
  return (*found)->info();
}

std::vector<pool_info> engine::list_pools() const {
  for (const pool_info& pool : impl_->known.list())
    if (const pool_ref one = pool.cache ? impl_->known.find(pool.id) : nullptr) impl_->drop_expired(*one);
  return impl_->known.list();
}

result<pool_info> engine::configure_pool(pool_id id, const pool_options& options) {
  if (status good = check_pool_options(options); !good) return std::move(good).error();
  std::lock_guard lock(impl_->pools_mutex);
  auto found = impl_->need_pool(id);
  if (!found) return std::move(found).error();
  if (status able = impl_->state.writable(); !able) return std::move(able).error();
  pool_info next = (*found)->info();
  next.options = options;
  const auto terms = impl_->options.cache_of ? impl_->options.cache_of(next) : std::nullopt;
  if (terms.has_value() != ((*found)->cache != nullptr))
    return failure{ENOTSUP, "store: pool " + shown((*found)->name) +
                                ": whether a pool is a cache cannot change: create another pool and put the values there"};
  if (terms && terms->policy != (*found)->cache->terms().policy)
    return failure{ENOTSUP, "store: pool " + shown((*found)->name) + ": its eviction is the one that it was made with"};
  if (status good = impl_->check_terms(next); !good) return std::move(good).error();
  rocksdb::WriteBatch batch;
  impl_->records->put(batch, family::catalogue, pool_key(id), encode(next));
  if (status written = impl_->records->write(batch, true); !written) {
    impl_->state.note(written.error());
    return std::move(written).error();
  }
  (*found)->set_options(options);
  if (terms) (*found)->cache->set_terms(*terms);
  impl_->place_pool(**found);
  impl_->trim_cache(**found, 0);
  return (*found)->info();
}

status engine::delete_pool(pool_id id) {
  std::lock_guard lock(impl_->pools_mutex);
  auto found = impl_->need_pool(id);
  if (!found) return std::move(found).error();
  if ((*found)->open_grants != 0)
    return failure{EBUSY, "store: pool " + shown((*found)->name) +
                              format(": %llu grants are open", static_cast<unsigned long long>((*found)->open_grants))};
  auto unit = std::make_unique<commit_unit>();
  unit->type = commit_unit::kind::drop_pool;
  unit->pool = *found;
  std::promise<status> answer;
  unit->done = [&](commit_unit& done) { answer.set_value(done.failed ? status(*done.failed) : status()); };
  auto answered = answer.get_future();
  impl_->commits->enqueue(std::move(unit));
  status outcome = answered.get();
  if (outcome) impl_->known.remove(id);
  return outcome;
}

void engine::sync_async(pool_id id, completion<durability> done) {
  auto found = impl_->need_pool(id);
  if (!found) return done(std::move(found).error());
  auto unit = std::make_unique<commit_unit>();
  unit->type = commit_unit::kind::sync;
  unit->pool = *found;
  unit->done = [done = std::move(done)](commit_unit& finished) {
    if (finished.failed) done(*finished.failed);
    else done(finished.reached);
  };
  impl_->commits->enqueue(std::move(unit));
}

status engine::sync(pool_id id) {
  std::promise<status> answer;
  auto answered = answer.get_future();
  sync_async(id, [&](result<durability> reached) { answer.set_value(reached ? status() : status(reached.error())); });
  return answered.get();
}

session_id engine::open_session() { return impl_->owners.open(); }
void engine::close_session(session_id session) { impl_->owners.close(session); }

}  // namespace pl::store
