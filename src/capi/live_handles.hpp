// SPDX-License-Identifier: Apache-2.0
// Objects behind opaque C handles, checked on use: any bit pattern may be given. For objects whose calls take microseconds.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

namespace pl {

template <class Object>
class live_handles {
 public:
  // Never destroyed: other threads may be inside at exit.
  static live_handles& instance() {
    static auto* const all = new live_handles;
    return *all;
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
  std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<Object>> objects_;
};

}  // namespace pl
