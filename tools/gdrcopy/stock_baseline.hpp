// SPDX-License-Identifier: Apache-2.0
// BENCHMARK BASELINE, not part of the product: the copy dispatch of GDRCopy 2.6 for write-combining mappings on x86-64,
// re-expressed from a description of its behaviour (which accesses of which width, in which order, with which fence), so
// that one run can compare both on the same machine. No code of GDRCopy was used.
#pragma once

#include <cstddef>

namespace pl::tools::baseline {

// Host -> mapping and mapping -> host, each ending with a store fence as upstream does. Any size, any alignment.
void copy_to_mapping(void* device, const void* host, std::size_t bytes);
void copy_from_mapping(void* host, const void* device, std::size_t bytes);

// The routine that the bulk of a large copy uses on this CPU: "movdir64b", "avx2" or "sse". For table headings and
// result files.
const char* write_routine_name();
const char* read_routine_name();

}  // namespace pl::tools::baseline
