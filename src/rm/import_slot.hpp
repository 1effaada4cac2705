// SPDX-License-Identifier: Apache-2.0
// Finds and replaces a function pointer in a loaded library's import table (ELF JMPREL and RELA relocations).
#pragma once

#include <atomic>

#include "base/status.hpp"

namespace pl::rm {

// Address of the slot through which `library` (a dlopen handle) calls `symbol`. ENOENT if it has none.
result<void**> find_import_slot(void* library, const char* symbol);

// Stores `replacement` into the slot; a read-only (RELRO) page is made writable for that moment.
status replace_import_slot(void** slot, void* replacement);

// Inserts `hook` before the slot's current target, which is first stored in `next`. For a slot that is still unresolved
// (lazy binding), the target is what it would resolve to: calling the unresolved value would let the dynamic linker
// overwrite the hook. Nothing changes if the hook is already there. ENOTSUP if the symbol is not found.
//
// Both functions run under the dynamic linker's own lock (dl_iterate_phdr holds it), the only lock that several
// libraries with a copy of this code share. Without it, one of them could make the page read-only while the other
// writes, or both could chain to the same target and lose a hook.
status hook_import_slot(void** slot, const char* symbol, void* hook, std::atomic<void*>& next);

}  // namespace pl::rm
