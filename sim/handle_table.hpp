// SPDX-License-Identifier: Apache-2.0
// Handles given to the application: numbers that look like pointers but are never dereferenced and never reused, so a
// stale handle is always recognised. A lookup returns shared ownership, so an object outlives its destruction by
// another thread for as long as a call still uses it. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

namespace pl::sim {

// kTag keeps the number spaces of different kinds apart: a stream passed as an event is refused.
template <class T, class Handle, unsigned kTag>
class handle_table {
 public:
  // A new unique handle; `assign` later makes it valid.
  Handle new_handle() {
    const std::unique_lock lock(mutex_);
    return to_handle((std::uint64_t{0x5c} << 40) | (std::uint64_t{kTag} << 36) | (++last_ << 4));
  }
  void assign(Handle handle, std::shared_ptr<T> value) {
    const std::unique_lock lock(mutex_);
    values_[to_number(handle)] = std::move(value);
  }
  Handle insert(std::shared_ptr<T> value) {
    const Handle handle = new_handle();
    assign(handle, std::move(value));
    return handle;
  }
  std::shared_ptr<T> find(Handle handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = values_.find(to_number(handle));
    return found == values_.end() ? nullptr : found->second;
  }
  std::shared_ptr<T> remove(Handle handle) {
    const std::unique_lock lock(mutex_);
    const auto found = values_.find(to_number(handle));
    if (found == values_.end()) return nullptr;
    auto value = std::move(found->second);
    values_.erase(found);
    return value;
  }
  template <class Predicate>
  std::vector<std::shared_ptr<T>> remove_if(Predicate&& doomed) {
    const std::unique_lock lock(mutex_);
    std::vector<std::shared_ptr<T>> removed;
    for (auto entry = values_.begin(); entry != values_.end();) {
      if (doomed(*entry->second)) {
        removed.push_back(std::move(entry->second));
        entry = values_.erase(entry);
      } else {
        ++entry;
      }
    }
    return removed;
  }

 private:
  static std::uint64_t to_number(Handle handle) {
    if constexpr (std::is_pointer_v<Handle>) return reinterpret_cast<std::uint64_t>(handle);
    else return handle;
  }
  static Handle to_handle(std::uint64_t number) {
    if constexpr (std::is_pointer_v<Handle>) return reinterpret_cast<Handle>(number);
    else return number;
  }

  mutable std::shared_mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<T>> values_;
  std::uint64_t last_ = 0;
};

}  // namespace pl::sim
