// SPDX-License-Identifier: Apache-2.0
#include "map/registry.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/live_counter.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "map/slot_arena.hpp"

namespace pl {
namespace {

// Limits: enough for any program seen, and cheap to reserve (128 MiB and 16 MiB of addresses, committed when used).
constexpr std::size_t kMaxRegions = 1 << 20;
constexpr std::size_t kMaxSessions = 1 << 16;
constexpr std::size_t kRegionQuarantine = 4096;
constexpr std::size_t kSessionQuarantine = 64;
constexpr std::uint32_t kClosing = 1u << 31;

// All mutable state of one process. A forked child that opens a session creates its own and keeps its ancestors' only
// to recognise their handles: threads that the child does not have may hold the locks in there.
struct process_state {
  std::uint32_t epoch = 0;
  process_state* ancestor = nullptr;
  slot_arena<region, kMaxRegions, kRegionQuarantine> regions;
  slot_arena<session_slot, kMaxSessions, kSessionQuarantine> sessions;
  std::array<std::mutex, 64> stripes;
};

std::atomic<process_state*> g_state{nullptr};

process_state& state_of_this_process() {
  const std::uint32_t epoch = claim_process_epoch();
  process_state* state = g_state.load(std::memory_order_acquire);
  while (state == nullptr || state->epoch != epoch) {
    auto* fresh = new process_state;  // never freed: handles into it may be checked until exit
    fresh->epoch = epoch;
    fresh->ancestor = state;
    if (g_state.compare_exchange_strong(state, fresh)) state = fresh;
    else delete fresh;
  }
  return *state;
}

std::mutex& stripe_of(const region* target) {
  return state_of_this_process().stripes[(reinterpret_cast<std::uintptr_t>(target) / sizeof(region)) % 64];
}

constexpr const char* kClosedSession = "the session (gdr_t) is not open: closed already, or never opened by this library";
constexpr const char* kForeignProcess =
    "the object belongs to another process (it was opened before fork): open one in this process";
constexpr const char* kDeadHandle = "the handle is not a live pin: released already, or not made by this library";

failure session_failure(int code) { return failure{code, code == EACCES ? kForeignProcess : kClosedSession}; }
failure region_failure(int code) { return failure{code, code == EACCES ? kForeignProcess : kDeadHandle}; }

// Both handles must be live and belong together.
status check_pair(session* handle, region* target) {
  if (const int code = check_session(handle)) return session_failure(code);
  if (const int code = check_region(target)) return region_failure(code);
  if (target->owner.load(std::memory_order_relaxed) != handle)
    return failure{EINVAL, "the handle was pinned with another session (gdr_t): use each handle with the one that made it"};
  return {};
}

status check_open(session* handle) {
  if (const int code = check_session(handle)) return session_failure(code);
  return {};
}

// A call in progress on a session, after the checks that every call makes. close_session() waits for it and refuses new
// calls.
class [[nodiscard]] session_use {
 public:
  explicit session_use(session* handle) : session_use(handle, check_open(handle)) {}
  session_use(session* handle, region* target) : session_use(handle, check_pair(handle, target)) {}
  ~session_use() {
    if (checked_) target_->busy.fetch_sub(1, std::memory_order_acq_rel);
  }
  session_use(const session_use&) = delete;
  session_use& operator=(const session_use&) = delete;
  explicit operator bool() const { return checked_.ok(); }
  failure refusal() const { return checked_.error(); }  // precondition: !*this

 private:
  session_use(session* handle, status checked) : target_(handle), checked_(std::move(checked)) {
    if (!checked_) return;
    if ((handle->busy.fetch_add(1, std::memory_order_acq_rel) & kClosing) == 0) return;
    handle->busy.fetch_sub(1, std::memory_order_acq_rel);
    checked_ = session_failure(EINVAL);
  }

  session* target_;
  status checked_;
};

void give_sendable_descriptor(session& target) {
  if (const int driver = target.owner->descriptor(); driver >= 0) {
    target.fd = driver;  // owned by the backend
    return;
  }
  target.fd = memfd_create("peerlane-session", MFD_CLOEXEC);
  struct stat about {};
  if (target.fd < 0 || fstat(target.fd, &about) != 0) return;
  target.fd_inode = about.st_ino;
  target.fd_device = about.st_dev;
}

// Closes our descriptor, unless the application already closed it and the number now names another file.
void close_sendable_descriptor(session& target) {
  if (target.fd < 0 || target.fd_inode == 0) return;
  struct stat about {};
  if (fstat(target.fd, &about) == 0 && about.st_ino == target.fd_inode && about.st_dev == target.fd_device)
    ::close(target.fd);
}

live_counter g_mappings{"mapping.open", live_kind::level};
live_counter g_mapped_bytes{"mapping.bytes", live_kind::level};
live_pair g_writes{"copy.mapping_write.count", "copy.mapping_write.bytes"};
live_pair g_reads{"copy.mapping_read.count", "copy.mapping_read.bytes"};

void unmap_locked(region& target, unmapping mode) {
  target.state.store(region_state::pinned, std::memory_order_release);
  target.type.store(arch::mapping_type::none, std::memory_order_relaxed);
  target.data_bytes.store(0, std::memory_order_relaxed);
  target.data.store(nullptr, std::memory_order_relaxed);
  target.pin->unmap(target.view, mode);
  g_mappings.add(-1);
  g_mapped_bytes.add(-static_cast<std::int64_t>(target.view.size_bytes));
  target.view = {};
}

// Takes the region off its session's list. Returns false if another thread already removed it.
bool take_off_list(session& owner, const region* target) {
  const std::lock_guard lock(owner.mutex);
  // In most cases the latest goes first.
  const auto found = std::find(owner.regions.rbegin(), owner.regions.rend(), target);
  if (found == owner.regions.rend()) return false;
  *found = owner.regions.back();
  owner.regions.pop_back();
  return true;
}

// A slot and a place on the session's list, taken before the pin is made, because nothing may fail afterwards. It is
// not a handle yet (its state is `free`), and is given back unless it is kept.
class [[nodiscard]] region_place {
 public:
  region_place(process_state& state, session& owner) : state_(state), owner_(owner), slot_(state.regions.take()) {
    if (slot_ == nullptr) return;
    const std::lock_guard lock(owner.mutex);
    try {
      owner.regions.push_back(slot_);
    } catch (const std::bad_alloc&) {
      state.regions.give_back(slot_);
      slot_ = nullptr;
    }
  }
  ~region_place() {
    if (slot_ != nullptr && take_off_list(owner_, slot_)) state_.regions.give_back(slot_);
  }
  region_place(const region_place&) = delete;
  region_place& operator=(const region_place&) = delete;
  region* get() const noexcept { return slot_; }
  void keep() noexcept { slot_ = nullptr; }

 private:
  process_state& state_;
  session& owner_;
  region* slot_;
};

// Precondition: the region is off its session's list, so nobody else releases it.
void release_region(region& target, unmapping mode) {
  {
    const std::lock_guard lock(stripe_of(&target));
    if (target.state.load(std::memory_order_relaxed) == region_state::mapped) unmap_locked(target, mode);
    target.state.store(region_state::free, std::memory_order_release);
    target.pin.reset();
    target.owner.store(nullptr, std::memory_order_relaxed);
  }
  state_of_this_process().regions.give_back(&target);
}

}  // namespace

int check_session(const session* handle) noexcept {
  const process_state* state = g_state.load(std::memory_order_acquire);
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  for (bool own = true; state != nullptr; state = state->ancestor, own = false) {
    if (!state->sessions.owns(value)) continue;
    const std::uint32_t epoch = handle->epoch.load(std::memory_order_acquire);
    if (epoch == 0) return EINVAL;
    return own && epoch == process_epoch() ? 0 : EACCES;
  }
  return EINVAL;
}

int check_region(const region* handle) noexcept {
  const process_state* state = g_state.load(std::memory_order_acquire);
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  for (bool own = true; state != nullptr; state = state->ancestor, own = false) {
    if (!state->regions.owns(value)) continue;
    if (handle->state.load(std::memory_order_acquire) == region_state::free) return EINVAL;
    return own && handle->epoch.load(std::memory_order_relaxed) == process_epoch() ? 0 : EACCES;
  }
  return EINVAL;
}

result<session*> open_session(const backend_environment& environment, const std::string& backend_name) {
  publish_live_counters();
  auto chosen = open_backend(environment, backend_name);
  if (!chosen) return chosen.error();
  process_state& state = state_of_this_process();
  session* fresh = state.sessions.take();
  if (fresh == nullptr)
    return failure{ENOMEM, format("more than %zu sessions are open, or memory is exhausted", kMaxSessions)};
  fresh->owner = *std::move(chosen);
  fresh->gdrdrv_version = fresh->owner->driver_version_word();
  fresh->fd_inode = 0;
  fresh->busy.fetch_and(~kClosing, std::memory_order_relaxed);
  fresh->regions.clear();
  give_sendable_descriptor(*fresh);
  fresh->epoch.store(state.epoch, std::memory_order_release);
  return fresh;
}

status close_session(session* handle) {
  if (const int code = check_session(handle)) return session_failure(code);
  if ((handle->busy.fetch_or(kClosing, std::memory_order_acq_rel) & kClosing) != 0) return session_failure(EINVAL);
  while (handle->busy.load(std::memory_order_acquire) != kClosing) sched_yield();  // each call in progress ends by itself
  handle->epoch.store(0, std::memory_order_release);
  std::vector<region*> left;
  {
    const std::lock_guard lock(handle->mutex);
    left.swap(handle->regions);
  }
  for (region* leftover : left) release_region(*leftover, unmapping::forgotten);
  close_sendable_descriptor(*handle);
  handle->fd = -1;
  handle->owner.reset();
  state_of_this_process().sessions.give_back(static_cast<session_slot*>(handle));
  return {};
}

result<region*> pin_region(session* handle, const pin_request& request) {
  const session_use use(handle);
  if (!use) return use.refusal();
  const std::uint64_t start = ticks();
  process_state& state = state_of_this_process();
  region_place place(state, *handle);
  region* const fresh = place.get();
  if (fresh == nullptr) return failure{ENOMEM, format("more than %zu pins are live, or memory is exhausted", kMaxRegions)};
  auto pin = handle->owner->pin(request);
  if (!pin) return pin.error();
  fresh->pin = *std::move(pin);
  fresh->owner.store(handle, std::memory_order_relaxed);
  fresh->device_ptr = request.range.begin;
  fresh->size_bytes = request.range.size_bytes;
  fresh->view = {};
  fresh->epoch.store(state.epoch, std::memory_order_relaxed);
  fresh->pin_ticks = ticks() - start;
  fresh->state.store(region_state::pinned, std::memory_order_release);
  place.keep();
  return fresh;
}

result<session_traits> traits_of(session* handle) {
  const session_use use(handle);
  if (!use) return use.refusal();
  const backend& owner = *handle->owner;
  return session_traits{owner.name(), owner.persistent(), owner.supports_force_pcie()};
}

result<region*> pin_and_map_region(session* handle, const pin_request& request) {
  const session_use use(handle);  // for both steps: a close between them would end the pin that the second one maps
  if (!use) return use.refusal();
  auto pinned = pin_region(handle, request);
  if (!pinned) return pinned;
  try {
    auto mapped = map_region_exactly(handle, *pinned);
    if (mapped) return pinned;
    (void)unpin_region(handle, *pinned, unmapping::by_request);  // report the reason of the map
    return mapped.error();
  } catch (const std::bad_alloc&) {
    (void)unpin_region(handle, *pinned, unmapping::by_request);
    throw;
  }
}

status map_region(session* handle, region* target, std::size_t size_bytes, arch::mapping_type wanted) {
  const session_use use(handle, target);
  if (!use) return use.refusal();
  const std::lock_guard lock(stripe_of(target));
  const region_state now = target->state.load(std::memory_order_acquire);
  if (now == region_state::free) return region_failure(EINVAL);
  if (now == region_state::mapped)
    return failure{EAGAIN, "the handle is mapped already: one mapping per handle, unmap it first"};
  const auto rounded = checked_align_up(size_bytes, kHostPageBytes);
  if (size_bytes == 0 || !rounded || *rounded > target->pin->range().size_bytes)
    return failure{EINVAL, format("the mapping's size (%zu bytes) must be 1 to the %llu bytes that are pinned", size_bytes,
                                  static_cast<unsigned long long>(target->pin->range().size_bytes))};
  auto view = target->pin->map(*rounded, wanted);
  if (!view) return view.error();
  target->view = *view;
  g_mappings.add();
  g_mapped_bytes.add(static_cast<std::int64_t>(view->size_bytes));
  target->data.store(static_cast<char*>(view->address), std::memory_order_relaxed);
  target->data_bytes.store(view->size_bytes, std::memory_order_relaxed);
  target->type.store(view->type, std::memory_order_relaxed);
  target->state.store(region_state::mapped, std::memory_order_release);
  return {};
}

status map_region_exactly(session* handle, region* target) {
  const session_use use(handle, target);
  if (!use) return use.refusal();
  if (auto s = map_region(handle, target, target->pin->range().size_bytes, arch::mapping_type::none); !s) return s;
  const std::uint64_t skip = target->device_ptr - target->pin->range().begin;
  target->data.store(target->data.load(std::memory_order_relaxed) + skip, std::memory_order_relaxed);
  target->data_bytes.store(target->size_bytes, std::memory_order_relaxed);
  return {};
}

status unmap_region(session* handle, region* target) {
  const session_use use(handle, target);
  if (!use) return use.refusal();
  const std::lock_guard lock(stripe_of(target));
  if (target->state.load(std::memory_order_acquire) != region_state::mapped)
    return failure{EINVAL, "the handle is not mapped"};
  unmap_locked(*target, unmapping::by_request);
  return {};
}

status unpin_region(session* handle, region* target, unmapping mode) {
  const session_use use(handle, target);
  if (!use) return use.refusal();
  if (!take_off_list(*handle, target)) return region_failure(EINVAL);
  release_region(*target, mode);
  return {};
}

result<bool> region_revoked(session* handle, region* target) {
  const session_use use(handle, target);
  if (!use) return use.refusal();
  const std::lock_guard lock(stripe_of(target));
  if (target->state.load(std::memory_order_acquire) == region_state::free) return region_failure(EINVAL);
  return target->pin->revoked();
}

namespace {

constexpr int kNothingToCopy = -1;
inline int copy_code(int code) { return code == kNothingToCopy ? 0 : code; }

// The checks of every copy: several loads from one slot. Returns 0, an errno value, or kNothingToCopy for size 0 with
// pointers that would be invalid for any other size (GDRCopy does not check them then).
inline int check_copy(const region* target, const void* mapped, const void* host, std::size_t size_bytes) noexcept {
  if (const int code = check_region(target); code != 0) [[unlikely]]
    return fail(code, code == EACCES ? kForeignProcess : kDeadHandle);
  if (target->state.load(std::memory_order_acquire) != region_state::mapped) [[unlikely]]
    return fail(EINVAL, "the handle is not mapped: call gdr_map before copying");
  const auto offset =
      static_cast<std::uint64_t>(static_cast<const char*>(mapped) - target->data.load(std::memory_order_relaxed));
  const std::uint64_t limit = target->data_bytes.load(std::memory_order_relaxed);
  if (offset > limit || size_bytes > limit - offset) [[unlikely]]
    return size_bytes == 0 ? kNothingToCopy : fail(EINVAL, "the copy leaves the mapping: nothing was copied");
  if (host == nullptr) [[unlikely]]
    return size_bytes == 0 ? kNothingToCopy : fail(EINVAL, "the host pointer is null: nothing was copied");
  return 0;
}

}  // namespace

int check_copy_range(const region* target, const void* mapped, const void* host, std::size_t size_bytes) noexcept {
  return copy_code(check_copy(target, mapped, host, size_bytes));
}

int region_write(region* target, void* mapped, const void* source, std::size_t size_bytes, bool fence) noexcept {
  if (const int code = check_copy(target, mapped, source, size_bytes)) [[unlikely]]
    return copy_code(code);
  const arch::mapping_type type = target->type.load(std::memory_order_relaxed);
  if (fence) arch::copy_to(type, mapped, source, size_bytes);
  else arch::copy_to_unfenced(type, mapped, source, size_bytes);
  g_writes.add(size_bytes);
  return 0;
}

int region_read(region* target, void* destination, const void* mapped, std::size_t size_bytes) noexcept {
  if (const int code = check_copy(target, mapped, destination, size_bytes)) [[unlikely]]
    return copy_code(code);
  arch::copy_from(target->type.load(std::memory_order_relaxed), destination, mapped, size_bytes);
  g_reads.add(size_bytes);
  return 0;
}

void count_region_read(std::size_t size_bytes) noexcept { g_reads.add(size_bytes); }

int region_fill(region* target, void* mapped, std::uint8_t value, std::size_t size_bytes) noexcept {
  if (const int code = check_copy(target, mapped, mapped, size_bytes)) [[unlikely]]
    return copy_code(code);
  arch::fill_to(target->type.load(std::memory_order_relaxed), mapped, 0x0101010101010101u * value, size_bytes);
  return 0;
}

int region_flush(region* target) noexcept {
  if (const int code = check_region(target)) [[unlikely]]
    return fail(code, code == EACCES ? kForeignProcess : kDeadHandle);
  arch::publish_to_device(target->type.load(std::memory_order_relaxed));
  return 0;
}

namespace {

// The text is on the heap: our thread-local storage is initial-exec (export_listener.cpp), so each byte of it is taken
// from the 1.6 KiB that glibc keeps for all such libraries of a process, and a dlopen fails when that is used up.
constexpr std::size_t kMessageBytes = 2048;  // "auto" joins the reasons of all backends
struct message_buffer {
  char* text = nullptr;
  ~message_buffer() {
    std::free(text);
    text = nullptr;
  }
};
thread_local message_buffer t_last_error;

}  // namespace

const char* last_error() noexcept {
  return t_last_error.text != nullptr ? t_last_error.text : "no call of this thread has failed";
}

int fail(int code, const char* message) noexcept {
  const int saved_errno = errno;
  if (t_last_error.text == nullptr) t_last_error.text = static_cast<char*>(std::malloc(kMessageBytes));
  if (char* text = t_last_error.text; text != nullptr) {
    const std::size_t length = std::min(std::strlen(message), kMessageBytes - 1);
    std::memcpy(text, message, length);
    text[length] = '\0';
  }
  PL_LOG(error, "%s", message);
  errno = saved_errno;
  return code;
}

int fail(const failure& reason) noexcept { return fail(reason.code, reason.message.c_str()); }

}  // namespace pl
