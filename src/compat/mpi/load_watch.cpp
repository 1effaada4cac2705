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

// Uses no lock of ours: a library's constructor may call MPI while its thread holds the dynamic linker's lock, and a
// holder of our lock would wait for that one.
bool detect_driver() noexcept {
  // The mark is set before the search: a library that is loaded in between comes after the mark, where the next call
  // finds it.
  void* const last = hold_last_object();
  const link_map* entry = nullptr;
  if (last != nullptr && dlinfo(last, RTLD_DI_LINKMAP, &entry) != 0) entry = nullptr;
  if (void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) {
    dlclose(library);
    const auto opened = cu::driver();
    if (opened) g_driver.store(*opened, std::memory_order_release);
    return opened.ok();
  }
  // Published after the search; until then other threads search too. An earlier mark stays loaded for ever, because another
  // thread may be reading it; there is one per burst of libraries. If an older mark overtakes a newer one, it costs one
  // more search.
  if (g_last_object.exchange(entry, std::memory_order_acq_rel) == entry && last != nullptr) dlclose(last);  // counted twice
  return false;
}

}  // namespace pl::mpi::detail
