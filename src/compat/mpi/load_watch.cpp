// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/load_watch.hpp"

#include <dlfcn.h>

#include <string>

namespace pl::mpi::detail {

std::atomic<const link_map*> g_last_object{nullptr};
std::atomic<const cu::driver_table*> g_driver{nullptr};

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

// Without a lock of our own: a library's constructor may call MPI while its thread holds the dynamic linker's lock, for
// which the holder of ours would wait.
bool detect_driver() noexcept {
  // The mark is set before the search: a library that is loaded in between stands behind the mark, where the next call finds
  // it.
  void* const last = hold_last_object();
  const link_map* entry = nullptr;
  if (last != nullptr && dlinfo(last, RTLD_DI_LINKMAP, &entry) != 0) entry = nullptr;
  if (void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) {
    dlclose(library);
    const auto opened = cu::driver();
    if (opened) g_driver.store(*opened, std::memory_order_release);
    return opened.ok();
  }
  // Published after the look, until which other threads must look too. A former mark stays loaded for ever, since one of
  // them may be reading it; there is one for each burst of libraries. An older mark that overtakes a newer one costs one
  // more look.
  if (g_last_object.exchange(entry, std::memory_order_acq_rel) == entry && last != nullptr) dlclose(last);  // counted twice
  return false;
}

}  // namespace pl::mpi::detail
