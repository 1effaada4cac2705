// SPDX-License-Identifier: Apache-2.0
#include "store/engine/value_stream.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <future>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

const failure kNoWindow{
    ENOMEM,
    "store: no memory for the windows of a value that memory does not hold: put fewer at a time, or give "
    "the store more memory"};

// The range [offset, offset + size) of these pieces.
std::vector<segment> part_of(const std::vector<segment>& pieces, std::uint64_t offset, std::uint64_t size) {
  std::vector<segment> out;
  for (const segment& piece : pieces) {
    if (offset >= piece.size_bytes) {
      offset -= piece.size_bytes;
      continue;
    }
    const std::uint64_t bytes = std::min(piece.size_bytes - offset, size);
    if (bytes == 0) break;
    out.push_back({piece.offset_bytes + offset, bytes});
    size -= bytes;
    offset = 0;
  }
  return out;
}

// A writer that has only announced a value holds at most this much of the disk, or twice what has arrived.
constexpr std::uint64_t kFirstExtentBytes = std::uint64_t{64} << 20;

// How many of kMaxSegments the first `bytes` of a value may use, so that enough are left for the rest.
std::size_t max_pieces_of(std::uint64_t bytes, std::uint64_t whole_bytes) {
  return static_cast<std::size_t>((bytes * kMaxSegments + whole_bytes - 1) / whole_bytes);
}

}  // namespace

window_memory::window_memory(std::size_t bytes) : bytes_(bytes) {
  void* const made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made != MAP_FAILED) memory_ = static_cast<std::byte*>(made);
}

window_memory::~window_memory() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

// ---- Writing -----------------------------------------------------------------------------------------------------------

value_writer::value_writer(engine::impl& owner, pool_ref pool, std::string full, value_ref made, stream_slot_ref slot)
    : owner_(owner), pool_(std::move(pool)), full_(std::move(full)), made_(std::move(made)), slot_(std::move(slot)) {
  for (auto& one : windows_) {
    one = window_memory(kWindowBytes);
    if (one.get() == nullptr) failed_ = kNoWindow;
  }
}

status value_writer::failed() const {
  std::lock_guard lock(mutex_);
  return failed_ ? status(*failed_) : status();
}

std::span<std::byte> value_writer::room() {
  std::lock_guard lock(mutex_);
  if (failed_ || busy_[current_]) return {};
  const std::uint64_t left = made_->length_bytes - begun_bytes_ - used_bytes_;
  return {windows_[current_].get() + used_bytes_, std::min(kWindowBytes - used_bytes_, left)};
}

void value_writer::filled(std::uint64_t bytes) {
  used_bytes_ += bytes;
  if (used_bytes_ > 0 && (used_bytes_ == kWindowBytes || begun_bytes_ + used_bytes_ == made_->length_bytes)) submit_window();
}

bool value_writer::when_room(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  if (failed_ || !busy_[current_]) return false;
  callback_ = std::move(callback);
  return true;
}

void value_writer::submit_window() {
  std::size_t window = 0;
  std::uint64_t offset = 0, size = 0;
  {
    std::lock_guard lock(mutex_);
    window = current_;
    offset = begun_bytes_;
    size = whole_blocks(used_bytes_);
    // The rest of the last block is written too, as zeros.
    std::memset(windows_[window].get() + used_bytes_, 0, size - used_bytes_);
    begun_bytes_ += used_bytes_;
    used_bytes_ = 0;
    busy_[window] = true;
    current_ ^= 1;
  }
  const bool taken = owner_.helpers->run_later(
      [me = shared_from_this(), window, offset, size] { me->window_ended(window, me->write_window(window, offset, size)); });
  if (!taken) window_ended(window, failure{ESHUTDOWN, "store: closed"});
}

status value_writer::write_window(std::size_t window, std::uint64_t offset, std::uint64_t size) {
  if (status able = owner_.state.writable(); !able) return able;
  const auto pieces = extents_for(offset, size);
  if (!pieces) return pieces.error();
  const std::span<std::byte> memory(windows_[window].get(), size);
  status done = owner_.files->write(owner_.space->blocks(*pieces, {&memory, 1}));
  if (!done) owner_.state.note(done.error());
  return done;
}

// Where these bytes lie. If the value's extents do not suffice, they are doubled.
result<std::vector<segment>> value_writer::extents_for(std::uint64_t offset, std::uint64_t size) {
  std::lock_guard lock(growing_);  // of two windows
  std::uint64_t taken_bytes = 0;
  for (const segment& piece : made_->on_disk()) taken_bytes += piece.size_bytes;
  while (taken_bytes < offset + size) {
    const std::uint64_t more = std::min(made_->length_bytes - taken_bytes, taken_bytes);
    const std::size_t most = max_pieces_of(taken_bytes + more, made_->length_bytes);
    if (most <= made_->on_disk().size())
      return failure{ENOSPC, "store: the free space of the disk is too scattered for the value"};
    auto pieces = owner_.allocate_extents(more, 0, most - made_->on_disk().size());
    if (!pieces) return pieces;
    made_->append_on_disk(*pieces);
    taken_bytes += whole_blocks(more);
  }
  return part_of(made_->on_disk(), offset, size);
}

void value_writer::window_ended(std::size_t window, status outcome) {
  std::function<void()> callback;
  bool last = false;
  {
    std::lock_guard lock(mutex_);
    busy_[window] = false;
    if (!outcome && !failed_) failed_ = outcome.error();
    callback = std::exchange(callback_, nullptr);
    last = ending_ && !busy_[0] && !busy_[1];
  }
  if (callback) callback();
  if (last) finish();
}

void value_writer::commit_async(const put_options& options, std::uint32_t crc32c, completion<put_result> done) {
  if (begun_bytes_ != made_->length_bytes) return done(failure{EINVAL, "store: the value is not complete"});
  if (status good = check_given(options.level); !good) return done(good.error());
  bool now = false;
  {
    std::lock_guard lock(mutex_);
    made_->crc = crc32c;
    ending_ = ending{options, std::move(done)};
    now = !busy_[0] && !busy_[1];
  }
  if (!now) return;
  if (!owner_.helpers->run_later([me = shared_from_this()] { me->finish(); }))
    ending_->done(failure{ESHUTDOWN, "store: closed"});
}

// Called after the last window is written, by a thread that may block.
void value_writer::finish() {
  const put_options& options = ending_->options;
  const auto level = pool_->level(options.level);
  if (!failed_ && level != durability::volatile_) {
    if (status synced = owner_.space->sync(made_->on_disk()); !synced) {
      owner_.state.note(synced.error());
      failed_ = synced.error();
    }
    count(owner_.state.syncs);
  }
  if (failed_) {
    made_.reset();  // frees its space before the answer
    return ending_->done(*failed_);
  }
  made_->user_flags = options.user_flags;
  if (!pool_->cache) made_->join_owner(options.owner);
  auto unit = std::make_unique<commit_unit>();
  unit->pool = pool_;
  unit->level = level;
  unit->request = options.request;
  unit->operations.push_back(operation{
      operation::kind::put, full_, std::move(made_), options.precondition, options.expected_version, 0, {}, options.copy});
  unit->done = answer_put(owner_, std::move(ending_->done));
  owner_.submit(std::move(unit));
}

// ---- Reading -----------------------------------------------------------------------------------------------------------

value_reader::value_reader(engine::impl& owner, pool_ref pool, std::string full, source origin, std::uint64_t offset_bytes,
                           std::uint64_t length_bytes, stream_slot_ref slot)
    : owner_(owner),
      pool_(std::move(pool)),
      full_(std::move(full)),
      source_(std::move(origin)),
      slot_(std::move(slot)),
      begin_(std::min(offset_bytes, source_.stored->length_bytes)),
      end_(begin_ + std::min(length_bytes, source_.stored->length_bytes - begin_)),
      offset_(begin_) {
  // One block more, because a range need not start at a block.
  for (auto& one : windows_) one = window_memory(kWindowBytes + kBlockBytes);
}

result<std::span<const std::byte>> value_reader::read(std::uint64_t offset, std::uint64_t bytes,
                                                      window_memory& destination) {
  if (destination.get() == nullptr) return kNoWindow;
  const std::uint64_t skip = offset % kBlockBytes;
  const std::span<std::byte> memory(destination.get(), whole_blocks(skip + bytes));
  const auto blocks = owner_.space->blocks(part_of(source_.stored->on_disk(), offset - skip, memory.size()), {&memory, 1});
  if (status done = owner_.files->read(blocks); !done)
    return failure{done.error().code, "store: pool " + shown(pool_->name) + ", key " + shown(key_of(full_)) + ", " +
                                          owner_.place_on_disk(*source_.stored) + ": " + done.error().message};
  return std::span<const std::byte>(destination.get() + skip, bytes);
}

result<std::span<const std::byte>> value_reader::next() {
  if (offset_ == end_) return std::span<const std::byte>{};
  // Windows after the first start at a block.
  const std::uint64_t bytes = std::min(kWindowBytes - offset_ % kBlockBytes, end_ - offset_);
  auto got = read(offset_, bytes, windows_[current_]);
  if (!got) return got;
  current_ ^= 1;
  offset_ += bytes;
  if (begin_ != 0 || end_ != source_.stored->length_bytes) return got;
  crc_ = arch::crc32c(got->data(), got->size(), crc_);
  if (offset_ < end_) return got;
  if (status same = owner_.check_stored(*pool_, full_, *source_.stored, crc_); !same) return std::move(same).error();
  return got;
}

void value_reader::next_async(completion<std::span<const std::byte>> done) {
  auto shared = std::make_shared<completion<std::span<const std::byte>>>(std::move(done));
  if (!owner_.helpers->run_later([me = shared_from_this(), shared] { (*shared)(me->next()); }))
    (*shared)(failure{ESHUTDOWN, "store: closed"});
}

status value_reader::verify() {
  std::uint32_t crc = 0;
  const std::uint64_t whole = source_.stored->length_bytes;
  for (std::uint64_t offset = 0; offset < whole;) {
    const auto got = read(offset, std::min(kWindowBytes, whole - offset), windows_[current_]);
    if (!got) return got.error();
    crc = arch::crc32c(got->data(), got->size(), crc);
    offset += got->size();
  }
  return owner_.check_stored(*pool_, full_, *source_.stored, crc);
}

// ---- The engine's side -------------------------------------------------------------------------------------------------

std::uint64_t engine::impl::max_in_memory() const noexcept {
  const std::uint64_t whole = memory->info().size_bytes;
  return std::min(kMaxValueBytes, std::max(whole / 2, std::min(whole, kWindowBytes)));
}

result<value_reader::source> engine::impl::find_on_disk(const std::string& full) {
  {
    table::shard& shard = values->shard_of(full);
    std::lock_guard lock(shard.mutex);
    if (const entry* key_entry = shard.find(full);
        key_entry != nullptr && key_entry->current && key_entry->current->owns_extents)
      return value_reader::source{key_entry->current, nullptr};
  }
  const extents::reading guard(*space);  // before the record is read, so that its extents stay until they are held
  const auto stored = records->get(family::values, full);
  if (!stored) return stored.error();
  if (!*stored) return failure{ENOENT, "store: no key " + shown(key_of(full))};
  const auto record = decode_value(**stored);
  if (!record) return failure{EUCLEAN, "store: the record of key " + shown(key_of(full)) + " is damaged"};
  if (!record->large()) return failure{EAGAIN, "store: key " + shown(key_of(full)) + " is in the index"};
  value_ref made = value::make(*home, record->length_bytes);
  made->version = record->version, made->crc = record->crc;
  made->user_flags = record->user_flags, made->written_unix_ns = record->written_unix_ns, made->level = record->level;
  made->join_owner(record->owner);
  made->set_on_disk(record->extents);
  // Lost pieces are given back elsewhere, and nothing reads them.
  if (space->why_lost(record->extents)) return value_reader::source{std::move(made), nullptr};
  return value_reader::source{std::move(made), std::make_shared<extents::held>(*space, record->extents)};
}

result<std::shared_ptr<value_reader>> engine::impl::make_reader(pool_ref pool, const std::string& full,
                                                                std::uint64_t offset_bytes, std::uint64_t length_bytes,
                                                                stream_slot_ref slot) {
  auto found = find_on_disk(full);
  if (!found) return std::move(found).error();
  if (status present = check_present(*pool, full, *found->stored); !present) return std::move(present).error();
  return std::make_shared<value_reader>(*this, std::move(pool), full, *std::move(found), offset_bytes, length_bytes,
                                        std::move(slot));
}

std::uint64_t engine::max_in_memory_bytes() const noexcept { return impl_->max_in_memory(); }

result<std::vector<segment>> engine::impl::allocate_extents(std::uint64_t size_bytes, std::uint64_t whole_bytes,
                                                            std::size_t max_pieces) {
  const auto attempt = [&]() -> result<std::vector<segment>> {
    if (status room = space->has_room(whole_bytes); !room) return std::move(room).error();
    return space->allocate(size_bytes, max_pieces);
  };
  auto pieces = attempt();
  if (pieces.code() == ENOSPC) {
    // The sync frees the space of values that were replaced without one.
    if (status synced = commits->sync_log(); !synced) return std::move(synced).error();
    pieces = attempt();
  }
  while (pieces.code() == ENOSPC && give_up_cached_extents(whole_bytes)) pieces = attempt();
  if (!pieces) state.note(pieces.error());
  return pieces;
}

result<std::shared_ptr<value_writer>> engine::open_writer(pool_id pool, std::string_view key, std::uint64_t length_bytes,
                                                          owner_id owner, const request_key& request) {
  auto found = impl_->need_pool(pool);
  if (!found) return std::move(found).error();
  if (status good = impl_->check_key(key); !good) return std::move(good).error();
  if (status able = impl_->state.writable(); !able) return std::move(able).error();
  if (length_bytes == 0) return failure{EINVAL, "store: an empty value needs no writer"};
  // Refuses a value with more pieces than a record holds: more files would not help.
  const std::uint64_t limit = std::min(kMaxValueBytes, impl_->options.extent_file_bytes * kMaxSegments);
  if (length_bytes > limit)
    return failure{EFBIG,
                   format("store: a value has at most %llu bytes here (extent files of %s)",
                          static_cast<unsigned long long>(limit), format_size(impl_->options.extent_file_bytes).c_str())};
  if (const auto limits = (*found)->options(); limits->quota_bytes != 0 && length_bytes > limits->quota_bytes)
    return failure{EDQUOT, "store: pool " + shown((*found)->name) + ": a value greater than its quota"};
  if (status fits = impl_->check_owner(**found, key, owner, length_bytes, request); !fits) return std::move(fits).error();
  auto slot = std::make_unique<stream_slot>(impl_->streams);
  if (!slot->taken())
    return failure{ENOSPC, format("store: %d values that are longer than memory are already in progress", kMaxStreams)};
  value_ref made = value::make(*impl_->home, length_bytes);
  const std::uint64_t first = std::min(length_bytes, kFirstExtentBytes);
  auto pieces = impl_->allocate_extents(first, length_bytes, max_pieces_of(first, length_bytes));
  if (!pieces) return std::move(pieces).error();
  made->set_on_disk(*std::move(pieces));
  made->owns_extents = true;
  return std::make_shared<value_writer>(*impl_, *found, full_key(pool, key), std::move(made), std::move(slot));
}

result<std::shared_ptr<value_reader>> engine::open_reader(pool_id pool, std::string_view key, const get_options& options) {
  auto found = impl_->need_pool(pool);
  if (!found) return std::move(found).error();
  if (status good = impl_->check_key(key); !good) return std::move(good).error();
  return impl_->open_reader(*found, full_key(pool, key), options);
}

result<std::shared_ptr<value_reader>> engine::impl::open_reader(const pool_ref& pool, const std::string& full,
                                                                const get_options& read_options) {
  auto slot = std::make_unique<stream_slot>(streams);
  if (!slot->taken())
    return failure{ENOSPC, format("store: %d values that are longer than memory are already in progress", kMaxStreams)};
  auto made = make_reader(pool, full, read_options.offset_bytes, read_options.length_bytes, std::move(slot));
  if (!made) return made;
  const bool whole = (*made)->range_bytes() == (*made)->info().length_bytes;
  if (!whole && (read_options.verify || pool->options()->verify_reads)) {
    if (status same = (*made)->verify(); !same) return std::move(same).error();
  }
  count(state.gets);
  count(state.misses);
  count(state.get_bytes, (*made)->range_bytes());
  return made;
}

// Puts a copy of such a value.
result<put_result> engine::impl::put_in_windows(engine& owner, pool_id pool, std::string_view key,
                                                std::span<const std::byte> bytes, const put_options& options) {
  auto writer = owner.open_writer(pool, key, bytes.size(), options.copy.version == 0 ? options.owner : 0, options.request);
  if (!writer) return std::move(writer).error();
  std::uint32_t crc = 0;
  while (!bytes.empty()) {
    const auto room = (*writer)->room();
    if (!room.empty()) {
      const auto part = bytes.first(std::min(bytes.size(), room.size()));
      crc = arch::crc32c_copy(room.data(), part.data(), part.size(), crc, true);
      (*writer)->filled(part.size());
      bytes = bytes.subspan(part.size());
      continue;
    }
    if (status bad = (*writer)->failed(); !bad) return std::move(bad).error();
    const auto seen = std::make_shared<std::promise<void>>();
    if ((*writer)->when_room([seen] { seen->set_value(); })) seen->get_future().wait();
  }
  std::promise<result<put_result>> answer;
  (*writer)->commit_async(options, crc, [&](result<put_result> got) { answer.set_value(std::move(got)); });
  return answer.get_future().get();
}

}  // namespace pl::store
