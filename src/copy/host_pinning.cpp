// SPDX-License-Identifier: Apache-2.0
#include "copy/host_pinning.hpp"

#include <algorithm>
#include <chrono>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "base/checked_math.hpp"
#include "base/text.hpp"
#include "copy/transfer.hpp"

namespace pl::copy {

struct pinned_pages {
  gpu_context context;
  address_range range;
  unsigned registrations = 1;
};

namespace {

struct all_pages {
  std::mutex mutex;
  std::list<pinned_pages> list;
};
all_pages& all() {
  static auto& only = *new all_pages;  // registrations may end after static objects
  return only;
}

// Precondition: the lock is held.
result<pinned_pages*> pin_pages(const gpu_context& context, address_range range) {
  auto scope = context_use::enter(context);
  if (!scope) return scope.error();
  auto& list = all().list;
  list.push_back({context, range});  // before the driver's call: nothing may fail after it
  constexpr unsigned kFlags = cu::host_register_flag::portable | cu::host_register_flag::device_map;
  const auto rc = context.cuda->cuMemHostRegister_v2(host_pointer(range.begin), range.size_bytes, kFlags);
  if (rc == cu::error_code::success) return &list.back();
  list.pop_back();
  if (rc == cu::error_code::host_memory_already_registered)
    return failure{EBUSY, "part of the host memory is registered already, and not all of it: register whole buffers"};
  return cu::make_error(*context.cuda, rc,
                        format("registering %zu bytes of host memory", static_cast<std::size_t>(range.size_bytes)));
}

// Fails if the context is gone, and the pinning with it. Precondition: the lock is held.
void unpin_pages(const pinned_pages& ended) noexcept {
  if (auto scope = context_use::enter(ended.context))
    ended.context.cuda->cuMemHostUnregister(host_pointer(ended.range.begin));
}

}  // namespace

result<host_pinning> host_pinning::make(const gpu_context& context, void* pointer, std::size_t bytes) {
  constexpr int kMaxWaits = 2000;  // milliseconds, enough for a copy of any size to end
  auto made = try_make(context, pointer, bytes);
  for (int i = 0; i < kMaxWaits && made.code() == EBUSY && concurrent_pin::overlaps({address_of(pointer), bytes}); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    made = try_make(context, pointer, bytes);
  }
  return made;
}

result<host_pinning> host_pinning::try_make(const gpu_context& context, void* pointer, std::size_t bytes) {
  const auto range = round_outwards({address_of(pointer), bytes}, kHostPageBytes);
  if (!range) return failure{EINVAL, "the host memory leaves the address space"};
  host_pinning out;
  const std::lock_guard lock(all().mutex);
  out.memory_ = inspect_host(*context.cuda, pointer, bytes);
  if (out.memory_.is_pinned) {
    auto& list = all().list;  // the latest first: one of a destroyed context may remain at the same addresses
    const auto found = std::find_if(list.rbegin(), list.rend(), [&](const pinned_pages& one) {
      return one.range.contains(*range) && one.context.is_alive();
    });
    if (found != list.rend()) {
      ++found->registrations;
      out.shared_ = &*found;
    }
    return out;
  }
  auto pinned = pin_pages(context, *range);
  if (!pinned) return pinned.error();
  out.memory_ = inspect_host(*context.cuda, pointer, bytes);
  if (out.memory_.is_pinned) {
    out.shared_ = *pinned;
    return out;
  }
  unpin_pages(**pinned);
  all().list.pop_back();
  return failure{EIO, "CUDA registered the host memory, but does not report it as pinned"};
}

host_pinning::host_pinning(host_pinning&& other) noexcept
    : memory_(other.memory_), shared_(std::exchange(other.shared_, nullptr)) {}

host_pinning& host_pinning::operator=(host_pinning&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(shared_, other.shared_);
  return *this;
}

void host_pinning::end() noexcept {
  if (shared_ == nullptr) return;
  const std::lock_guard lock(all().mutex);
  pinned_pages* const ended = std::exchange(shared_, nullptr);
  if (--ended->registrations != 0) return;
  unpin_pages(*ended);
  all().list.remove_if([ended](const pinned_pages& one) { return &one == ended; });
}

}  // namespace pl::copy
