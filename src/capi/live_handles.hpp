// SPDX-License-Identifier: Apache-2.0
// Objects behind opaque C handles, checked on use: any bit pattern may be given. For objects whose calls take
// microseconds.
#pragma once

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/status.hpp"
#include "os/fork_guard.hpp"

namespace pl {

template <class Object>
class live_handles {
 public:
  // Never destroyed, because other threads may be inside at exit. A forked child has a table of its own: its parent's
  // may have been locked at the fork, and the objects in it use the parent's connections and memory.
  static live_handles& instance() {
    static std::atomic<live_handles*> table{nullptr};
    live_handles* now = table.load(std::memory_order_acquire);
    if (now != nullptr && now->epoch_ == process_epoch()) return *now;
    auto* const fresh = new live_handles(claim_process_epoch(), now != nullptr);
    if (table.compare_exchange_strong(now, fresh, std::memory_order_acq_rel)) return *fresh;
    delete fresh;
    return *now;
  }
  // Why a handle is not found.
  failure missing() const {
    if (!is_child_) return {EINVAL, "the handle is not live: ended already, or not made by this library"};
    return {EACCES, "the handle is not live in this process: a child of fork opens its own, and leaves its parent's alone"};
  }
  void* add(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    void* const handle = object.get();
    objects_.emplace(handle, std::move(object));
    return handle;
  }
  std::shared_ptr<Object> find(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found != objects_.end() ? found->second : nullptr;
  }
  std::shared_ptr<Object> remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  live_handles(std::uint32_t epoch, bool is_child) : epoch_(epoch), is_child_(is_child) {}
  const std::uint32_t epoch_;
  const bool is_child_;  // of a process that had used handles
  std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<Object>> objects_;
};

}  // namespace pl
