// SPDX-License-Identifier: Apache-2.0
// dlopen() with a reason that can be acted upon.
#pragma once

#include "base/status.hpp"

namespace pl {

// Like dlopen(name, mode), with dlerror() as the message. EMFILE, ENFILE: no file could be opened, whatever is
// installed. ENOENT: anything else. Thread-safe.
result<void*> load_library(const char* name, int mode);

}  // namespace pl
