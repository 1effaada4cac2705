// SPDX-License-Identifier: Apache-2.0
#include "rm/import_slot.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/text.hpp"

namespace pl::rm {
namespace {

#if defined(__x86_64__)
constexpr unsigned kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr unsigned kGlobalData = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr unsigned kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr unsigned kGlobalData = R_AARCH64_GLOB_DAT;
#endif

struct dynamic_view {
  ElfW(Addr) base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela) * jump = nullptr;
  std::size_t jump_count = 0;
  const ElfW(Rela) * rela = nullptr;
  std::size_t rela_count = 0;
};

dynamic_view read_dynamic(const link_map* map) {
  dynamic_view view;
  view.base = map->l_addr;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto pointer = entry->d_un.d_ptr;  // glibc has relocated these
    switch (entry->d_tag) {
      case DT_SYMTAB:
        view.symbols = reinterpret_cast<const ElfW(Sym)*>(pointer);
        break;
      case DT_STRTAB:
        view.strings = reinterpret_cast<const char*>(pointer);
        break;
      case DT_JMPREL:
        view.jump = reinterpret_cast<const ElfW(Rela)*>(pointer);
        break;
      case DT_PLTRELSZ:
        view.jump_count = entry->d_un.d_val / sizeof(ElfW(Rela));
        break;
      case DT_RELA:
        view.rela = reinterpret_cast<const ElfW(Rela)*>(pointer);
        break;
      case DT_RELASZ:
        view.rela_count = entry->d_un.d_val / sizeof(ElfW(Rela));
        break;
      default:
        break;
    }
  }
  return view;
}

void** search(const dynamic_view& view, const ElfW(Rela) * table, std::size_t count, const char* symbol) {
  for (std::size_t i = 0; table != nullptr && i < count; ++i) {
    const auto type = ELF64_R_TYPE(table[i].r_info);
    if (type != kJumpSlot && type != kGlobalData) continue;
    const auto& sym = view.symbols[ELF64_R_SYM(table[i].r_info)];
    if (std::strcmp(view.strings + sym.st_name, symbol) == 0) return reinterpret_cast<void**>(view.base + table[i].r_offset);
  }
  return nullptr;
}

struct segment_query {
  const void* address;
  bool in_relro = false;
  bool found = false;
  ElfW(Addr) image_begin = 0, image_end = 0;
};

int inspect_segments(dl_phdr_info* info, std::size_t, void* data) {
  auto* query = static_cast<segment_query*>(data);
  const auto wanted = reinterpret_cast<ElfW(Addr)>(query->address);
  ElfW(Addr) begin = ~ElfW(Addr){0}, end = 0;
  bool relro = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    const ElfW(Addr) low = info->dlpi_addr + segment.p_vaddr, high = low + segment.p_memsz;
    if (segment.p_type == PT_LOAD) {
      if (low < begin) begin = low;
      if (high > end) end = high;
    }
    if (segment.p_type == PT_GNU_RELRO && wanted >= low && wanted < high) relro = true;
  }
  if (wanted < begin || wanted >= end) return 0;
  query->found = true;
  query->in_relro = relro;
  query->image_begin = begin;
  query->image_end = end;
  return 1;
}

segment_query inspect(const void* address) {
  segment_query query{address};
  dl_iterate_phdr(inspect_segments, &query);
  return query;
}

}  // namespace

result<void**> find_import_slot(void* library, const char* symbol) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr)
    return failure{ENOTSUP, "the dynamic linker does not describe libcuda (dlinfo failed)"};
  const dynamic_view view = read_dynamic(map);
  if (view.symbols == nullptr || view.strings == nullptr) return failure{ENOENT, "libcuda has no dynamic symbol table"};
  void** slot = search(view, view.jump, view.jump_count, symbol);
  if (slot == nullptr) slot = search(view, view.rela, view.rela_count, symbol);
  if (slot == nullptr) return failure{ENOENT, format("libcuda does not import %s", symbol)};
  return slot;
}

namespace {

struct slot_change {
  void** slot;
  void* replacement;
  std::atomic<void*>* next;  // where the slot led before; may be null
  void* bound;               // what an unresolved slot would resolve to
  segment_query own;
  std::uintptr_t page, page_bytes;
  int error = 0;
};

// Runs under the dynamic linker's lock, and therefore must neither allocate nor call the linker.
int change_slot(dl_phdr_info*, std::size_t, void* data) {
  auto& change = *static_cast<slot_change*>(data);
  void* const page = reinterpret_cast<void*>(change.page);
  if (change.next != nullptr) {
    void* target = __atomic_load_n(change.slot, __ATOMIC_ACQUIRE);
    if (target == change.replacement) return 1;  // already ours: it must not lead to itself
    const auto address = reinterpret_cast<ElfW(Addr)>(target);
    if (change.own.found && address >= change.own.image_begin && address < change.own.image_end) target = change.bound;
    change.next->store(target, std::memory_order_release);
  }
  if (change.own.in_relro && mprotect(page, change.page_bytes, PROT_READ | PROT_WRITE) != 0) {
    change.error = errno;
    return 1;
  }
  __atomic_store_n(change.slot, change.replacement, __ATOMIC_RELEASE);
  if (change.own.in_relro) mprotect(page, change.page_bytes, PROT_READ);
  return 1;
}

status apply(slot_change& change) {
  change.page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  change.page = reinterpret_cast<std::uintptr_t>(change.slot) & ~(change.page_bytes - 1);
  dl_iterate_phdr(change_slot, &change);
  if (change.error == 0) return {};
  return failure{change.error,
                 format("the import table page cannot be made writable: %s", errno_text(change.error).c_str())};
}

}  // namespace

status replace_import_slot(void** slot, void* replacement) {
  slot_change change{slot, replacement, nullptr, nullptr, inspect(slot), 0, 0};
  return apply(change);
}

status hook_import_slot(void** slot, const char* symbol, void* hook, std::atomic<void*>& next) {
  slot_change change{slot, hook, &next, dlsym(RTLD_DEFAULT, symbol), inspect(slot), 0, 0};
  if (change.bound == nullptr) return failure{ENOTSUP, format("libc's %s was not found", symbol)};
  return apply(change);
}

}  // namespace pl::rm
