// SPDX-License-Identifier: Apache-2.0
// Replaces a mapping that its user did not unmap by a range in which every access raises SIGBUS, as gdrdrv does. The
// addresses are not reused, so a stale pointer never reaches memory that somebody else mapped meanwhile.
#pragma once

#include <cstddef>

#include "os/device_io.hpp"

namespace pl {

// Each range permanently costs the process one of its 65530 memory areas, and some clients never unmap. Beyond this number
// the range is unmapped instead: an access then faults with SIGSEGV until something else is mapped there.
constexpr int kMaxFaultingRanges = 256;

// Replaces [address, address + size_bytes), which the caller has mapped, in one step. If the kernel refuses, or beyond
// kMaxFaultingRanges, the range is unmapped; the mapping is gone in every case. Preserves errno. Thread-safe.
void leave_faulting_range(device_io& io, void* address, std::size_t size_bytes) noexcept;

// Resets the count, for tests that run after others that forgot many mappings in the same process.
void recount_faulting_ranges_for_tests() noexcept;

}  // namespace pl
