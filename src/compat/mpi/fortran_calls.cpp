// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/fortran_calls.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/log.hpp"

namespace pl::mpi {
namespace {

// Open MPI; MPICH and its relatives, whose bindings mostly call MPI_ functions, but not all of them do.
constexpr std::string_view kBindings[] = {"libmpi_mpifh", "libmpichfort.", "libmpifort."};

bool is_binding(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  const std::string_view name = slash == nullptr ? path : slash + 1;
  for (const auto one : kBindings)
    if (name.substr(0, one.size()) == one) return true;
  return false;
}

bool names_a_function(const ElfW(Rela) & one) {
#if defined(__x86_64__)
  return ELF64_R_TYPE(one.r_info) == R_X86_64_JUMP_SLOT || ELF64_R_TYPE(one.r_info) == R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
  return ELF64_R_TYPE(one.r_info) == R_AARCH64_JUMP_SLOT || ELF64_R_TYPE(one.r_info) == R_AARCH64_GLOB_DAT;
#else
  return (void)one, false;
#endif
}

// A loaded object, as far as its calls of functions elsewhere go.
class loaded_object {
 public:
  explicit loaded_object(const dl_phdr_info& object) : base_(object.dlpi_addr) {
    for (unsigned i = 0; i < object.dlpi_phnum; ++i) {
      const auto& part = object.dlpi_phdr[i];
      if (part.p_type == PT_DYNAMIC) read(reinterpret_cast<const ElfW(Dyn)*>(base_ + part.p_vaddr));
      if (part.p_type == PT_GNU_RELRO)
        constant_begin_ = base_ + part.p_vaddr, constant_end_ = constant_begin_ + part.p_memsz;
    }
  }

  // `found(name)` returns the address of what is to be called under that name, or null.
  template <class Found>
  int redirect(Found found) const {
    int changed = 0;
    for (const auto& list : tables_)
      for (std::size_t i = 0; symbols_ != nullptr && names_ != nullptr && i < list.bytes / sizeof(ElfW(Rela)); ++i) {
        const auto& one = reinterpret_cast<const ElfW(Rela)*>(list.begin)[i];
        if (!names_a_function(one)) continue;
        if (void* const wanted = found(names_ + symbols_[ELF64_R_SYM(one.r_info)].st_name))
          changed += write(base_ + one.r_offset, wanted) ? 1 : 0;
      }
    return changed;
  }

 private:
  void read(const ElfW(Dyn) * entry) {
    // The dynamic linker has made addresses of these offsets, but not on every system.
    const auto address = [&](const ElfW(Dyn) & one) {
      return one.d_un.d_ptr < base_ ? base_ + one.d_un.d_ptr : one.d_un.d_ptr;
    };
    for (; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_JMPREL) tables_[0].begin = address(*entry);
      if (entry->d_tag == DT_PLTRELSZ) tables_[0].bytes = entry->d_un.d_val;
      if (entry->d_tag == DT_RELA) tables_[1].begin = address(*entry);
      if (entry->d_tag == DT_RELASZ) tables_[1].bytes = entry->d_un.d_val;
      if (entry->d_tag == DT_SYMTAB) symbols_ = reinterpret_cast<const ElfW(Sym)*>(address(*entry));
      if (entry->d_tag == DT_STRTAB) names_ = reinterpret_cast<const char*>(address(*entry));
    }
  }

  bool write(std::uintptr_t place, void* value) const {
    // An object that was bound when it was loaded has made its addresses read-only.
    const bool is_constant = place >= constant_begin_ && place < constant_end_;
    const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    auto* const page = reinterpret_cast<void*>(place / page_bytes * page_bytes);
    if (is_constant && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) return false;
    __atomic_store_n(reinterpret_cast<void**>(place), value, __ATOMIC_RELEASE);
    if (is_constant) mprotect(page, page_bytes, PROT_READ);
    return true;
  }

  struct table {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
  };
  std::uintptr_t base_, constant_begin_ = 0, constant_end_ = 0;
  table tables_[2];
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
};

int redirect_one(dl_phdr_info* object, std::size_t, void* own_library) {
  if (object->dlpi_name == nullptr || !is_binding(object->dlpi_name)) return 0;
  const int changed = loaded_object(*object).redirect([own_library](const char* name) -> void* {
    return std::strncmp(name, "PMPI_", 5) == 0 ? dlsym(own_library, name + 1) : nullptr;
  });
  PL_LOG(info, "peerlane-mpi: %d functions of %s accept device memory", changed, object->dlpi_name);
  return 0;
}

}  // namespace

void redirect_fortran_calls() noexcept {
  Dl_info own{};
  if (dladdr(reinterpret_cast<void*>(&redirect_fortran_calls), &own) == 0) return;
  // This library links no MPI: what its handle does not find, it does not have.
  void* const library = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  dl_iterate_phdr(redirect_one, library);
  dlclose(library);
}

}  // namespace pl::mpi
