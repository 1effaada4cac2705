// SPDX-License-Identifier: Apache-2.0
// Objects behind C handles that are opened rarely and looked up by every call: a fixed table, so that any address can
// be checked without a lock. After a fork the parent's objects answer EACCES in the child, which may open its own.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "capi/capi_call.hpp"
#include "capi/errno_guard.hpp"
#include "os/fork_guard.hpp"

namespace pl {

// What a handle points to; the public struct derives from it.
template <class Object>
struct open_slot {
  using object_t = Object;
  std::atomic<Object*> open{nullptr};
  std::atomic<std::uint32_t> epoch{0};
  bool is_reserved = false;  // guarded by the table's mutex
};

template <class Slot, std::size_t Most>
class open_table {
 public:
  using object_t = typename Slot::object_t;

  // The object, or null with `code` and the thread's last error set: EINVAL, or EACCES with `foreign` in a forked
  // child.
  object_t* find(Slot* handle, const char* foreign, int& code) noexcept {
    const auto distance = reinterpret_cast<std::uintptr_t>(handle) - reinterpret_cast<std::uintptr_t>(slots_.data());
    if (distance >= sizeof slots_ || distance % sizeof(Slot) != 0) return code = fail(EINVAL, kDead), nullptr;
    object_t* const found = handle->open.load(std::memory_order_acquire);
    if (found == nullptr) return code = fail(EINVAL, kDead), nullptr;
    if (handle->epoch.load(std::memory_order_relaxed) != process_epoch()) [[unlikely]]
      return code = fail(EACCES, foreign), nullptr;
    return found;
  }

  // Reserves a slot while its object is being made. (Ranks of one job may be threads of one process, so no lock is held
  // meanwhile.) Null if all are in use. In a forked child, the parent's slots count as free.
  Slot* reserve() {
    const std::lock_guard lock(mutex_);
    const auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& each) {
      return each.epoch.load(std::memory_order_relaxed) != process_epoch() ||
             (!each.is_reserved && each.open.load(std::memory_order_relaxed) == nullptr);
    });
    if (free == slots_.end()) return nullptr;
    free->open.store(nullptr, std::memory_order_relaxed);
    free->is_reserved = true;
    free->epoch.store(claim_process_epoch(), std::memory_order_relaxed);
    return &*free;
  }
  // Ends the reservation; null: the object could not be made.
  void publish(Slot& slot, object_t* made) {
    const std::lock_guard lock(mutex_);
    slot.is_reserved = false;
    slot.open.store(made, std::memory_order_release);
  }

 private:
  std::array<Slot, Most> slots_{};
  std::mutex mutex_;
};

// Common entry for the calls on a handle: returns the errno value of `act(object&)` if `find(handle, code)` has the
// object. Preserves errno, because CUDA and the kernel may be called.
template <class Handle, class Object, class Act>
int with_open(Handle handle, Object* (*find)(Handle, int&) noexcept, Act&& act) try {
  const errno_guard guard;
  int code = 0;
  Object* const found = find(handle, code);
  return found != nullptr ? act(*found) : code;
}
PL_NO_EXCEPTIONS

}  // namespace pl
