// SPDX-License-Identifier: Apache-2.0
#include "load_watch.hpp"

#include <dlfcn.h>

#include <mutex>
#include <string>

#include "driver_table.hpp"

namespace pl::mpi::detail {

std::atomic<const link_map*> g_last_object{nullptr};
std::atomic<bool> g_driver_is_there{false};

namespace {

int remember_name(dl_phdr_info* object, std::size_t, void* name) {
  *static_cast<std::string*>(name) = object->dlpi_name;
  return 0;
}

// A handle keeps the object loaded: its entry can be read until the handle is given back.
void* hold_last_object() {
  std::string name;
  dl_iterate_phdr(remember_name, &name);
  return name.empty() ? nullptr : dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
}

}  // namespace

bool look_for_driver() noexcept {
  static std::mutex mutex;
  static void* held = nullptr;
  const std::lock_guard lock(mutex);
  if (g_driver_is_there.load(std::memory_order_relaxed)) return true;
  // First the mark, then the look: what is loaded in between stands behind the mark and is found by the next call. The
  // former mark stays loaded for ever: another thread may be reading it, and there is one for each burst of libraries.
  void* const last = hold_last_object();
  const link_map* entry = nullptr;
  if (last != nullptr && dlinfo(last, RTLD_DI_LINKMAP, &entry) != 0) entry = nullptr;
  if (last == held && last != nullptr) dlclose(last);  // counted twice
  held = last;
  g_last_object.store(entry, std::memory_order_release);
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  dlclose(library);
  if (!cu::driver()) return false;
  g_driver_is_there.store(true, std::memory_order_release);
  return true;
}

}  // namespace pl::mpi::detail
