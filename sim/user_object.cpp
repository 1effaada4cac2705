// SPDX-License-Identifier: Apache-2.0
// User objects: something of the application's that lives as long as the graphs that use it. The destructor runs on a
// thread of the driver's, some time after the last reference is gone, and may not call the driver.
#include "sim/graph.hpp"

namespace pl::sim {

struct user_object {
  user_object_t handle = nullptr;
  void* data = nullptr;
  host_function_t destroy = nullptr;
  std::atomic<unsigned> references{0};
};

namespace {

handle_table<user_object, user_object_t, 12>& user_objects() {
  static auto* const instance = new handle_table<user_object, user_object_t, 12>;
  return *instance;
}

void give_back(const std::shared_ptr<user_object>& object, unsigned count) {
  if (object->references.fetch_sub(count, std::memory_order_acq_rel) != count) return;
  user_objects().remove(object->handle);
  const auto destroy = [object] {
    const host_function_scope scope;
    object->destroy(object->data);
  };
  try {
    start_thread(destroy);
  } catch (const std::system_error&) { destroy(); }
}

}  // namespace

kept_objects::kept_objects(const kept_objects& other) : held_(other.held_) {
  for (const auto& [object, count] : held_) object->references.fetch_add(count, std::memory_order_relaxed);
}

kept_objects::~kept_objects() {
  for (const auto& [object, count] : held_) give_back(object, count);
}

void kept_objects::add(const std::shared_ptr<user_object>& object, unsigned count) {
  for (auto& [held, held_count] : held_)
    if (held == object) {
      held_count += count;
      return;
    }
  held_.emplace_back(object, count);
}

bool kept_objects::remove(const std::shared_ptr<user_object>& object, unsigned count) {
  for (auto entry = held_.begin(); entry != held_.end(); ++entry)
    if (entry->first == object && entry->second >= count) {
      entry->second -= count;
      if (entry->second == 0) held_.erase(entry);
      give_back(object, count);
      return true;
    }
  return false;
}

PL_SIM_API cuUserObjectCreate(user_object_t* out, void* data, host_function_t destroy, unsigned references, unsigned flags) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (out == nullptr || destroy == nullptr || references == 0 || flags != user_object_flag::no_destructor_sync)
    return code::invalid_value;
  auto made = std::make_shared<user_object>();
  made->data = data;
  made->destroy = destroy;
  made->references = references;
  made->handle = user_objects().new_handle();
  *out = made->handle;
  user_objects().assign(made->handle, made);
  return code::success;
}

PL_SIM_API cuUserObjectRetain(user_object_t handle, unsigned count) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto found = user_objects().find(handle);
  if (found == nullptr || count == 0) return code::invalid_value;
  found->references.fetch_add(count, std::memory_order_relaxed);
  return code::success;
}

PL_SIM_API cuUserObjectRelease(user_object_t handle, unsigned count) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto found = user_objects().find(handle);
  if (found == nullptr || count == 0 || found->references.load() < count) return code::invalid_value;
  give_back(found, count);
  return code::success;
}

PL_SIM_API cuGraphRetainUserObject(graph_t graph_handle, user_object_t handle, unsigned count, unsigned flags) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto target = find_graph(graph_handle);
  const auto found = user_objects().find(handle);
  if (target == nullptr || found == nullptr || count == 0 || (flags & ~unsigned{user_object_retain_flag::move}) != 0)
    return code::invalid_value;
  if (flags == 0) found->references.fetch_add(count, std::memory_order_relaxed);
  const std::lock_guard lock(graph_mutex());
  target->objects.add(found, count);
  return code::success;
}

PL_SIM_API cuGraphReleaseUserObject(graph_t graph_handle, user_object_t handle, unsigned count) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto source = find_graph(graph_handle);
  const auto found = user_objects().find(handle);
  if (source == nullptr || found == nullptr || count == 0) return code::invalid_value;
  const std::lock_guard lock(graph_mutex());
  return source->objects.remove(found, count) ? code::success : code::invalid_value;
}

}  // namespace pl::sim
