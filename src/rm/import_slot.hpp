// SPDX-License-Identifier: Apache-2.0
// Finding and replacing one function pointer in a loaded library's import table (ELF JMPREL and RELA relocations).
#pragma once

#include <atomic>

#include "base/status.hpp"

namespace pl::rm {

// Address of the slot through which `library` (a dlopen handle) calls `symbol`. ENOENT if it has none.
result<void**> find_import_slot(void* library, const char* symbol);

// Stores `replacement` into the slot; a read-only (RELRO) page is made writable for that moment.
status replace_import_slot(void** slot, void* replacement);

// Puts `hook` before what the slot leads to, which goes into `next` first; for a slot that is still unresolved (lazy
// binding) that is what it would resolve to: calling the unresolved value would let the dynamic linker overwrite the hook.
// Nothing changes if the hook is there already. ENOTSUP if the symbol is not found.
//
// Both run under the dynamic linker's own lock (dl_iterate_phdr holds it), the only one that several libraries with a copy
// of this code share: without it one of them makes the page read-only while the other writes, or both chain to the same
// target and one hook is lost.
status hook_import_slot(void** slot, const char* symbol, void* hook, std::atomic<void*>& next);

}  // namespace pl::rm
