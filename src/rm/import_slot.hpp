// SPDX-License-Identifier: Apache-2.0
// Finding and replacing one function pointer in a loaded library's import table (ELF JMPREL and RELA relocations).
#pragma once

#include "status.hpp"

namespace pl::rm {

// Address of the slot through which `library` (a dlopen handle) calls `symbol`. ENOENT if it has none.
result<void**> find_import_slot(void* library, const char* symbol);

// Stores `replacement` into the slot; a read-only (RELRO) page is made writable for that moment.
status replace_import_slot(void** slot, void* replacement);

// The function that the slot leads to at the moment; if the slot is still unresolved (lazy binding), the one it would
// resolve to: calling the unresolved value would let the dynamic linker overwrite our replacement.
void* current_target(void** slot, const char* symbol);

}  // namespace pl::rm
