// SPDX-License-Identifier: Apache-2.0
// What the static parts of GCC 12's run-time libraries need from a C library newer than 2.34, so that programs built on
// Debian 12 also run on machines with 2.34 (RHEL 9 and its relatives). Linked into every program and shared library,
// and hidden there:
//   arc4random (2.36), for libstdc++'s std::random_device, which RocksDB uses;
//   _dl_find_object (2.35), for libgcc's unwinder at each frame of an exception. The C library's own is used if it has one.
// test/abi/lowest_glibc_test.py checks what is still needed.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

#define PL_HIDDEN extern "C" __attribute__((visibility("hidden")))

// A random number from the kernel. Ends the process if the kernel provides none, as the C library's does.
PL_HIDDEN std::uint32_t arc4random() noexcept {
  std::uint32_t value = 0;
  if (getentropy(&value, sizeof value) != 0) std::abort();
  return value;
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE
namespace {

struct search {
  ElfW(Addr) address;
  dl_find_object* found;
};

// The object that has the address in one of its segments, and where its table of frames begins.
int visit(dl_phdr_info* object, std::size_t, void* argument) noexcept {
  auto& wanted = *static_cast<search*>(argument);
  ElfW(Addr) low = ~ElfW(Addr){0}, high = 0, frames = 0;
  bool is_inside = false;
  for (ElfW(Half) i = 0; i < object->dlpi_phnum; ++i) {
    const auto& header = object->dlpi_phdr[i];
    const ElfW(Addr) begin = object->dlpi_addr + header.p_vaddr, end = begin + header.p_memsz;
    if (header.p_type == PT_GNU_EH_FRAME) frames = begin;
    if (header.p_type != PT_LOAD) continue;
    is_inside = is_inside || (wanted.address >= begin && wanted.address < end);
    low = begin < low ? begin : low;
    high = end > high ? end : high;
  }
  if (!is_inside || frames == 0) return 0;
  *wanted.found = {};
  wanted.found->dlfo_map_start = reinterpret_cast<void*>(low);
  wanted.found->dlfo_map_end = reinterpret_cast<void*>(high);
  wanted.found->dlfo_eh_frame = reinterpret_cast<void*>(frames);
  return 1;
}

using find_object_function = int (*)(void*, dl_find_object*);
std::atomic<find_object_function> c_library_finder{nullptr};
std::atomic<bool> is_looked_up{false};

}  // namespace

// As <dlfcn.h> specifies: returns 0 and fills `found`, or returns -1. Thread-safe; allocates nothing.
PL_HIDDEN int _dl_find_object(void* address, dl_find_object* found) noexcept {
  if (!is_looked_up.load(std::memory_order_acquire)) {
    c_library_finder.store(reinterpret_cast<find_object_function>(dlsym(RTLD_NEXT, "_dl_find_object")),
                           std::memory_order_relaxed);
    is_looked_up.store(true, std::memory_order_release);
  }
  if (const auto finder = c_library_finder.load(std::memory_order_relaxed)) return finder(address, found);
  search wanted{reinterpret_cast<ElfW(Addr)>(address), found};
  return dl_iterate_phdr(visit, &wanted) == 1 ? 0 : -1;
}
#endif
