// SPDX-License-Identifier: Apache-2.0
// Locks, always in this order. `making` serialises slow work (backend, driver, evictions). `dropping` serialises the
// searches for freed memory, so that none returns while another still unmaps an entry. `lock` guards the table and the
// reference counts for a few instructions, and is the only one that a hit takes. The table holds one reference of each
// entry; the thread that drops the last one unmaps, outside of `lock`. The counts are under the lock because atomic
// ones would cost a hit and its end three locked instructions instead of two, which are most of their cost.
#include "copy/mapping_cache.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/live_counter.hpp"
#include "base/log.hpp"
#include "base/shortage.hpp"
#include "base/text.hpp"
#include "copy/memory_window.hpp"
#include "copy/refusal_list.hpp"
#include "copy/spin_lock.hpp"
#include "os/blocked_signals.hpp"
#include "os/device_io.hpp"
#include "os/fork_guard.hpp"

namespace pl::copy {
namespace {

constexpr std::uint64_t kSmallestWindow = 2u << 20;
constexpr std::size_t kMaxEntries = 512;  // a dma-buf needs a descriptor each: half of the usual limit of 1024
constexpr std::size_t kBuckets = 1024;    // a power of two

live_counter g_kept_mappings{"copy.mappings", live_kind::level};
live_counter g_kept_bytes{"copy.mapped_bytes", live_kind::level};

std::size_t bucket_of(address_range pages) {
  const std::uint64_t mixed =
      (pages.begin / kHostPageBytes * 0x9E3779B97F4A7C15u) ^ (pages.size_bytes * 0xD6E8FEB86659FD93u);
  return mixed >> 54;
}
static_assert(kBuckets == std::size_t{1} << (64 - 54));

mapping_cache::options made_sane(mapping_cache::options wanted) {
  std::uint64_t window_bytes = kSmallestWindow;
  while (window_bytes <= wanted.window_bytes / 2) window_bytes *= 2;
  wanted.window_bytes = window_bytes;
  wanted.capacity_bytes = std::max(wanted.capacity_bytes, window_bytes);
  return wanted;
}

}  // namespace

struct mapping_cache::entry {
  std::uint32_t references = 1;  // guarded by the table's lock, like the next four
  bool is_linked = false;
  std::size_t index = 0;       // in the list of all entries
  std::uint64_t last_use = 0;  // by the cache's own clock
  entry* next = nullptr;       // in its bucket
  bool is_revocable = false;
  arch::mapping_type type = arch::mapping_type::none;
  memory_identity id;
  address_range pages;
  char* data = nullptr;  // of the first page
  state* owner = nullptr;
  // Rarely used.
  std::uint64_t serial = 0;  // never reused
  std::uint64_t probe = 0;   // the address for asking the driver whether the memory still exists
  std::unique_ptr<pinned_memory> pin;
  cpu_view view;

  void release() noexcept;
};

struct mapping_cache::state {
  explicit state(options given) : wanted(made_sane(std::move(given))) {}

  const options wanted;
  const std::uint32_t epoch = claim_process_epoch();

  // The table. What every hit writes has its own cache lines, so that readers of the rest do not wait for them.
  alignas(64) mutable spin_lock lock;
  std::uint64_t clock = 0;
  statistics counted;
  alignas(64) std::array<entry*, kBuckets> buckets{};
  std::vector<entry*> entries;
  std::atomic<std::uint64_t> mapped_bytes{0};

  // Making entries.
  std::mutex making;
  std::unique_ptr<backend> maker;
  std::optional<refusal> no_maker;
  refusal_list refusals;
  std::uint64_t last_serial = 0;
  std::atomic<const cu::driver_table*> cuda{nullptr};

  // The sweep.
  std::mutex dropping;
  std::mutex sweep_mutex;
  std::condition_variable sweep_wakes;
  pthread_t sweep_thread{};
  bool is_sweeping = false;  // the thread exists
  bool has_work = false;
  bool must_stop = false;

  bool is_ours() const { return process_epoch() == epoch; }
  void count(int mappings, std::int64_t bytes) noexcept {
    mapped_bytes.fetch_add(static_cast<std::uint64_t>(bytes), std::memory_order_relaxed);
    if (wanted.open) return;
    g_kept_mappings.add(mappings);
    g_kept_bytes.add(bytes);
  }

  entry* take(const memory_identity& id, address_range pages);
  entry* find_locked(const memory_identity& id, address_range pages) const;
  void link(entry& fresh);
  void unlink_locked(entry& old);

  result<entry*> take_or_make(const memory_identity& id, const window& range);
  result<entry*> make(const memory_identity& id, const window& range);
  result<entry*> map(const memory_identity& id, const window& range);
  status open_maker();
  bool make_room(std::uint64_t bytes);
  bool drop_least_recent();
  void drop_unused();
  bool is_revoked(entry& held);

  std::size_t drop_stale();
  std::size_t drop_stale_locked();
  void start_sweep();
  void stop_sweep();
  void sweep();
};

// ---- Entries

void mapping_cache::entry::release() noexcept {
  if (!owner->is_ours()) return;  // leaked: the mapping is not in this process, and the pin is the parent's
  {
    const std::lock_guard guard(owner->lock);
    if (--references != 0) return;
  }
  pin->unmap(view, unmapping::by_request);
  const std::uint64_t bytes = pin->range().size_bytes;
  pin.reset();
  owner->count(-1, -static_cast<std::int64_t>(bytes));
  delete this;
}

void mapping_cache::hold::give_back(entry* held) noexcept { held->release(); }

// ---- The table

mapping_cache::entry* mapping_cache::state::find_locked(const memory_identity& id, address_range pages) const {
  entry* found = buckets[bucket_of(pages)];
  while (found != nullptr &&
         !(found->pages.begin == pages.begin && found->pages.size_bytes == pages.size_bytes && found->id == id))
    found = found->next;
  return found;
}

// The entry with an additional reference, or null.
inline mapping_cache::entry* mapping_cache::state::take(const memory_identity& id, address_range pages) {
  const std::lock_guard guard(lock);
  entry* found = find_locked(id, pages);
  if (found == nullptr) return nullptr;
  ++found->references;
  found->last_use = ++clock;
  ++counted.hits;
  return found;
}

void mapping_cache::state::link(entry& fresh) {
  const std::lock_guard guard(lock);
  entry*& bucket = buckets[bucket_of(fresh.pages)];
  fresh.next = bucket;
  bucket = &fresh;
  fresh.index = entries.size();
  entries.push_back(&fresh);  // the constructor reserved room for it
  fresh.last_use = ++clock;
  fresh.is_linked = true;
}

// The caller takes over the table's reference.
void mapping_cache::state::unlink_locked(entry& old) {
  entry** link = &buckets[bucket_of(old.pages)];
  while (*link != &old) link = &(*link)->next;
  *link = old.next;
  entries[old.index] = entries.back();
  entries[old.index]->index = old.index;
  entries.pop_back();
  old.is_linked = false;
}

// ---- Making

status mapping_cache::state::open_maker() {
  if (maker != nullptr) return {};
  if (no_maker && !no_maker->is_over()) return no_maker->reason;
  const cu::driver_table* const driver = cuda.load(std::memory_order_relaxed);
  auto opened = wanted.open ? wanted.open(*driver) : open_backend({&default_device_io(), driver}, wanted.backend);
  if (opened) {
    maker = *std::move(opened);
    no_maker.reset();
    return {};
  }
  no_maker = refuse({}, opened.error(), kRetryMs);
  return opened.error();
}

// Returns true if an unused entry was dropped.
bool mapping_cache::state::drop_least_recent() {
  entry* victim = nullptr;
  {
    const std::lock_guard guard(lock);
    for (entry* candidate : entries)
      if (candidate->references == 1 && (victim == nullptr || candidate->last_use < victim->last_use)) victim = candidate;
    if (victim == nullptr) return false;
    unlink_locked(*victim);
  }
  victim->release();
  return true;
}

bool mapping_cache::state::make_room(std::uint64_t bytes) {
  const auto fits = [&] {
    if (mapped_bytes.load(std::memory_order_relaxed) + bytes > wanted.capacity_bytes) return false;
    const std::lock_guard guard(lock);
    return entries.size() < kMaxEntries;
  };
  while (!fits()) {
    if (!drop_least_recent()) return false;
    const std::lock_guard guard(lock);
    ++counted.evictions;
  }
  return true;
}

void mapping_cache::state::drop_unused() {
  while (drop_least_recent()) {}
}

result<mapping_cache::entry*> mapping_cache::state::map(const memory_identity& id, const window& range) {
  auto fresh = std::make_unique<entry>();  // before the mapping, because memory may run out
  pin_request request;
  request.range = range.exact;
  auto pin = maker->pin(request);
  if (!pin) return pin.error();
  if (!(*pin)->range().contains(range.pages))
    return failure{EIO, format("backend %s pinned less than it was asked for", maker->name())};
  auto view = (*pin)->map((*pin)->range().size_bytes, arch::mapping_type::none);
  if (!view) return view.error();
  // The backend determined by itself what to pin. An application that remaps the address at the same moment must get an
  // error, and must not leave an entry that claims the wrong memory.
  auto now = cu::inspect_pointer(*cuda.load(std::memory_order_relaxed), range.exact.begin);
  if (!now || !(identity_of(*now) == id)) {
    (*pin)->unmap(*view, unmapping::by_request);
    return failure{EAGAIN, "the memory was freed or remapped while it was being mapped: copy only memory that stays"};
  }
  fresh->is_revocable = !maker->persistent();
  fresh->type = view->type;
  fresh->id = id;
  fresh->pages = range.pages;
  fresh->data = static_cast<char*>(view->address) + (range.pages.begin - (*pin)->range().begin);
  fresh->serial = ++last_serial;
  fresh->probe = range.exact.begin;
  fresh->pin = *std::move(pin);
  fresh->view = *view;
  fresh->owner = this;
  count(1, static_cast<std::int64_t>(fresh->pin->range().size_bytes));
  return fresh.release();
}

// A new entry, linked, with a reference for the caller.
result<mapping_cache::entry*> mapping_cache::state::make(const memory_identity& id, const window& range) {
  if (auto s = open_maker(); !s) return s.error();
  drop_stale();
  if (!make_room(range.pages.size_bytes))
    return failure{EBUSY, format("copies in progress hold all of the mapping capacity (%s)",
                                 format_size(wanted.capacity_bytes).c_str())};
  auto fresh = map(id, range);
  if (!fresh && is_shortage_or_full(fresh.code())) {  // BAR1 or descriptors are exhausted: drop our unused entries first
    drop_unused();
    fresh = map(id, range);
  }
  if (!fresh) {
    if (fresh.code() != EAGAIN) refusals.add(refuse(id, fresh.error(), kRetryMs));
    return fresh.error();
  }
  (*fresh)->references = 2;  // the table's and the caller's
  link(**fresh);
  start_sweep();
  return fresh;
}

result<mapping_cache::entry*> mapping_cache::state::take_or_make(const memory_identity& id, const window& range) {
  const std::lock_guard guard(making);
  if (entry* found = take(id, range.pages)) return found;  // another thread was faster
  const refusal* known = refusals.find(id);
  {
    const std::lock_guard table(lock);
    ++(known != nullptr ? counted.refused : counted.misses);
  }
  if (known != nullptr) return known->reason;
  return make(id, range);
}

// Asks the kernel. If the mapping is revoked, drops the entry and the caller's reference.
bool mapping_cache::state::is_revoked(entry& held) {
  bool was_linked = false;
  {
    const std::lock_guard guard(making);  // a pin may be used by one thread at a time
    const auto answer = held.pin->revoked();
    if (answer && !*answer) return false;
    const std::lock_guard table(lock);
    was_linked = held.is_linked;
    if (was_linked) {
      unlink_locked(held);
      ++counted.stale;
    }
  }
  if (was_linked) held.release();
  held.release();
  return true;
}

// ---- Finding

mapping_cache::mapping_cache(options wanted) : state_(new state(std::move(wanted))) { state_->entries.reserve(kMaxEntries); }

mapping_cache::~mapping_cache() {
  if (!state_->is_ours()) {  // the thread and the mappings are the parent's, and missing threads may hold locks
    static_cast<void>(state_.release());
    return;
  }
  state_->stop_sweep();
  state_->drop_unused();
  assert(state_->mapped_bytes.load() == 0 && "a hold is left");
}

result<mapping_cache::hold> mapping_cache::find(const cu::driver_table& cuda, const cu::pointer_info& info,
                                                std::uint64_t pointer, std::size_t bytes) {
  state& s = *state_;
  if (!s.is_ours()) [[unlikely]]
    return failure{EACCES, "the mappings belong to another process: CUDA memory cannot be used over fork"};
  const address_range wanted{pointer, bytes};
  if (bytes == 0 || !info.allocation.contains(wanted)) [[unlikely]]
    return failure{EINVAL, "the copy has no bytes or leaves its allocation"};
  const auto range = window_around(info, wanted, s.wanted.window_bytes);
  if (!range) return failure{ERANGE, "larger than half a window, or over several memory objects"};
  const memory_identity id = identity_of(info);
  entry* found = s.take(id, range->pages);
  if (found != nullptr && found->is_revocable && s.is_revoked(*found)) [[unlikely]]
    found = nullptr;
  if (found == nullptr) [[unlikely]] {
    if (!is_recognisable(id, info))
      return failure{ENOTSUP, "this driver does not tell VMM and pool memory from its successors at the same address"};
    s.cuda.store(&cuda, std::memory_order_relaxed);
    auto made = s.take_or_make(id, *range);
    if (!made) return made.error();
    found = *made;
  }
  hold out;
  out.data = found->data + (pointer - found->pages.begin);
  out.type = found->type;
  out.entry_ = found;
  return out;
}

std::uint64_t mapping_cache::trim(bool all) {
  state& s = *state_;
  if (!s.is_ours()) return 0;
  const std::lock_guard guard(s.making);
  const std::lock_guard alone(s.dropping);
  s.drop_stale_locked();
  if (all) {
    s.drop_unused();
    s.refusals.clear();
    s.no_maker.reset();
  }
  return s.mapped_bytes.load(std::memory_order_relaxed);
}

mapping_cache::statistics mapping_cache::counts() const {
  if (!state_->is_ours()) return {};
  const std::lock_guard guard(state_->lock);
  statistics out = state_->counted;
  out.entries = state_->entries.size();
  out.mapped_bytes = state_->mapped_bytes.load(std::memory_order_relaxed);
  return out;
}

// ---- Memory that is gone

// Drops every entry at whose address the driver reports other memory, or none. Returns how many are left. Thread-safe.
std::size_t mapping_cache::state::drop_stale() {
  const std::lock_guard guard(dropping);
  return drop_stale_locked();
}

std::size_t mapping_cache::state::drop_stale_locked() {
  struct question {
    memory_identity id;
    address_range pages;
    std::uint64_t probe, serial;
  };
  std::vector<question> questions;  // a copy: the driver is called without our lock, and without keeping entries alive
  questions.reserve(kMaxEntries);
  {
    const std::lock_guard guard(lock);
    for (const entry* each : entries) questions.push_back({each->id, each->pages, each->probe, each->serial});
  }
  for (const auto& asked : questions) {
    const auto now = cu::inspect_pointer(*cuda.load(std::memory_order_relaxed), asked.probe);
    if (now && identity_of(*now) == asked.id) continue;
    entry* gone = nullptr;
    {
      const std::lock_guard guard(lock);
      entry* found = find_locked(asked.id, asked.pages);
      if (found == nullptr || found->serial != asked.serial) continue;  // another thread was faster
      gone = found;
      unlink_locked(*gone);
      ++counted.stale;
    }
    gone->release();
  }
  const std::lock_guard guard(lock);
  return entries.size();
}

// At every new entry. If no thread can be started, memory is still released at misses.
void mapping_cache::state::start_sweep() {
  if (wanted.sweep_ms == 0) return;
  const std::lock_guard guard(sweep_mutex);
  if (!std::exchange(has_work, true)) sweep_wakes.notify_all();
  if (is_sweeping) return;
  const blocked_signals blocked;
  const int code = pthread_create(
      &sweep_thread, nullptr,
      [](void* self) -> void* {
        static_cast<state*>(self)->sweep();
        return nullptr;
      },
      this);
  is_sweeping = code == 0;
  if (code != 0) PL_LOG(warn, "no thread for the sweep of cached mappings: %s", errno_text(code).c_str());
}

void mapping_cache::state::stop_sweep() {
  {
    const std::lock_guard guard(sweep_mutex);
    if (!is_sweeping) return;
    must_stop = true;
    sweep_wakes.notify_all();
  }
  pthread_join(sweep_thread, nullptr);
}

void mapping_cache::state::sweep() {
  pthread_setname_np(pthread_self(), "pl-mapcache");
  std::unique_lock guard(sweep_mutex);
  while (!must_stop) {
    sweep_wakes.wait(guard, [this] { return must_stop || has_work; });  // asleep while there are no entries
    if (sweep_wakes.wait_for(guard, std::chrono::milliseconds(wanted.sweep_ms), [this] { return must_stop; })) return;
    // Before the question, because an entry that arrives during the sweep sets it again.
    has_work = false;
    guard.unlock();
    const bool others_are_done = !wanted.also_sweep || wanted.also_sweep();
    const bool is_empty = drop_stale() == 0 && others_are_done;
    guard.lock();
    has_work |= !is_empty;
  }
}

}  // namespace pl::copy
