// SPDX-License-Identifier: Apache-2.0
// Blocks' C interface; the contract is in peerlane/blocks.h.
#include <peerlane/blocks.h>

#include "base/text.hpp"
#include "capi/errno_guard.hpp"
#include "capi/open_copier.hpp"
#include "copy/block_list.hpp"
#include "copy/block_transfer.hpp"

namespace {

using pl::fail;
using pl::kNullPointer;
using pl::copy::direction;

int read_side(const char* role, const peerlane_paged_memory& given, std::size_t plane_count, pl::copy::paged_memory& out) {
  if (given.memory > PEERLANE_MEMORY_DEVICE) return fail(EINVAL, pl::kNoMemoryKind);
  if (given.planes == nullptr && plane_count != 0) return fail(EINVAL, kNullPointer);
  if (given.indices != nullptr) {
    if (given.index_size_bytes != sizeof(std::int32_t) && given.index_size_bytes != sizeof(std::int64_t))
      return fail(pl::failure{
          EINVAL, pl::format("the %s's index_size_bytes is %u: 4 and 8 are known", role, given.index_size_bytes)});
    if (reinterpret_cast<std::uintptr_t>(given.indices) % given.index_size_bytes != 0)
      return fail(pl::failure{EINVAL, pl::format("the %s's indices are not aligned to their size", role)});
    out.indices = given.index_size_bytes == sizeof(std::int32_t)
                      ? pl::copy::block_indices(static_cast<const std::int32_t*>(given.indices))
                      : pl::copy::block_indices(static_cast<const std::int64_t*>(given.indices));
  }
  out.planes = {given.planes, plane_count};
  out.plane_bytes = given.plane_size_bytes;
  out.stride_bytes = given.stride_bytes;
  return 0;
}

bool is_device_side(std::uint64_t address, std::uint32_t memory) {
  peerlane_buffer first{};
  first.address = address;
  first.memory = memory;
  return pl::is_device_memory(first);
}

int read_direction(bool to_device, bool from_device, direction& out) {
  if (!to_device && !from_device)
    return fail(EINVAL,
                "the destination and the source are host memory both, or GPU memory that was freed: use memcpy, or say "
                "device memory");
  out = !to_device ? direction::to_host : from_device ? direction::on_device : direction::to_device;
  return 0;
}

int read_blocks(const peerlane_blocks* given, pl::copy::block_transfer& out) {
  if (given == nullptr) return fail(EINVAL, kNullPointer);
  if (const int code = read_side("destination", given->destination, given->plane_count, out.destination)) return code;
  if (const int code = read_side("source", given->source, given->plane_count, out.source)) return code;
  out.block_bytes = given->block_size_bytes;
  out.count = given->count;
  if (out.block_bytes == 0 || out.count == 0 || given->plane_count == 0) return out.count = 0, 0;
  return read_direction(is_device_side(given->destination.planes[0], given->destination.memory),
                        is_device_side(given->source.planes[0], given->source.memory), out.way);
}

int read_list(const peerlane_block_list* given, pl::copy::block_list& out) {
  if (given == nullptr) return fail(EINVAL, kNullPointer);
  if (given->destination_memory > PEERLANE_MEMORY_DEVICE || given->source_memory > PEERLANE_MEMORY_DEVICE)
    return fail(EINVAL, pl::kNoMemoryKind);
  if (given->count == 0) return 0;
  if (given->destinations == nullptr || given->sources == nullptr) return fail(EINVAL, kNullPointer);
  out.destinations = {given->destinations, given->count};
  out.sources = {given->sources, given->count};
  if (given->sizes_bytes != nullptr) out.sizes = {given->sizes_bytes, given->count};
  else out.block_bytes = given->block_size_bytes;
  std::size_t first = 0;  // with bytes: others may have null pointers
  while (first < given->count && out.size(first) == 0) ++first;
  if (first == given->count) return 0;
  return read_direction(is_device_side(given->destinations[first], given->destination_memory),
                        is_device_side(given->sources[first], given->source_memory), out.way);
}

int check_flags(std::uint32_t flags) {
  constexpr std::uint32_t kKnown = PEERLANE_BEGIN_AFTER_STREAM | PEERLANE_BEGIN_URGENT;
  return (flags & ~kKnown) == 0 ? 0 : fail(EINVAL, "unknown bits in flags: give PEERLANE_BEGIN_ values only");
}

pl::copy::planner::async_options options_of(std::uint32_t flags, void* stream) {
  pl::copy::planner::async_options wanted;
  wanted.has_after = (flags & PEERLANE_BEGIN_AFTER_STREAM) != 0;
  wanted.after = static_cast<pl::cu::stream_t>(stream);
  wanted.is_urgent = (flags & PEERLANE_BEGIN_URGENT) != 0;
  return wanted;
}

// `read` converts the caller's struct, `copy` passes it to the planner.
template <class List, class Given>
int copy_now(peerlane_copier_t copier, const Given* given, int (*read)(const Given*, List&),
             pl::status (pl::copy::planner::*copy)(const List&)) {
  const pl::errno_guard guard;
  int code = 0;
  auto* const planner = pl::planner_of(copier, code);
  if (planner == nullptr) return code;
  List list;
  if ((code = read(given, list)) != 0) return code;
  return pl::return_code((planner->*copy)(list));
}

template <class List, class Given>
int begin_copy(peerlane_copier_t copier, const Given* given, pl::copy::planner::async_options wanted, peerlane_op_t* op,
               int (*read)(const Given*, List&),
               pl::result<pl::copy::completion> (pl::copy::planner::*begin)(const List&,
                                                                            const pl::copy::planner::async_options&)) {
  const pl::errno_guard guard;
  int code = 0;
  auto* const planner = pl::planner_of(copier, code);
  if (planner == nullptr) return code;
  List list;
  if ((code = read(given, list)) != 0) return code;
  auto begun = (planner->*begin)(list, wanted);
  if (!begun) return fail(begun.error());
  return pl::add_operation(copier, *std::move(begun), list.bytes(), *op);
}

}  // namespace

PL_EXPORT int peerlane_blocks_copy(peerlane_copier_t copier, const struct peerlane_blocks* given) try {
  return copy_now<pl::copy::block_transfer>(copier, given, read_blocks, &pl::copy::planner::copy_blocks);
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_blocks_begin(peerlane_copier_t copier, const struct peerlane_blocks* given, uint32_t flags,
                                    void* stream, peerlane_op_t* op) try {
  if (op == nullptr) return fail(EINVAL, kNullPointer);
  if (const int code = check_flags(flags)) return code;
  return begin_copy<pl::copy::block_transfer>(copier, given, options_of(flags, stream), op, read_blocks,
                                              &pl::copy::planner::begin_blocks);
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_block_list_copy(peerlane_copier_t copier, const struct peerlane_block_list* given) try {
  return copy_now<pl::copy::block_list>(copier, given, read_list, &pl::copy::planner::copy_block_list);
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_block_list_begin(peerlane_copier_t copier, const struct peerlane_block_list* given, uint32_t flags,
                                        void* stream, peerlane_op_t* op) try {
  if (op == nullptr) return fail(EINVAL, kNullPointer);
  if (const int code = check_flags(flags)) return code;
  return begin_copy<pl::copy::block_list>(copier, given, options_of(flags, stream), op, read_list,
                                          &pl::copy::planner::begin_block_list);
}
PL_NO_EXCEPTIONS
