// SPDX-License-Identifier: Apache-2.0
// Blocks' C interface; the contract is in peerlane/blocks.h.
#include <peerlane/blocks.h>

#include "base/text.hpp"
#include "capi/errno_keeper.hpp"
#include "capi/open_copier.hpp"
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

bool is_device_side(const peerlane_paged_memory& side) {
  peerlane_buffer first{};
  first.address = side.planes[0];
  first.memory = side.memory;
  return pl::is_device_memory(first);
}

int read_blocks(const peerlane_blocks* given, pl::copy::block_transfer& out) {
  if (given == nullptr) return fail(EINVAL, kNullPointer);
  if (const int code = read_side("destination", given->destination, given->plane_count, out.destination)) return code;
  if (const int code = read_side("source", given->source, given->plane_count, out.source)) return code;
  out.block_bytes = given->block_size_bytes;
  out.count = given->count;
  if (out.block_bytes == 0 || out.count == 0 || given->plane_count == 0) return out.count = 0, 0;
  const bool to_device = is_device_side(given->destination), from_device = is_device_side(given->source);
  if (!to_device && !from_device)
    return fail(EINVAL, "the destination and the source are host memory both: use memcpy, or say device memory");
  out.way = !to_device ? direction::to_host : from_device ? direction::on_device : direction::to_device;
  return 0;
}

}  // namespace

PL_EXPORT int peerlane_blocks_copy(peerlane_copier_t copier, const struct peerlane_blocks* given) try {
  const pl::errno_keeper keeper;
  int code = 0;
  auto* const planner = pl::planner_of(copier, code);
  if (planner == nullptr) return code;
  pl::copy::block_transfer blocks;
  if ((code = read_blocks(given, blocks)) != 0) return code;
  return pl::return_code(planner->copy_blocks(blocks));
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_blocks_begin(peerlane_copier_t copier, const struct peerlane_blocks* given, uint32_t flags,
                                    void* stream, peerlane_op_t* op) try {
  const pl::errno_keeper keeper;
  if (op == nullptr) return fail(EINVAL, kNullPointer);
  constexpr std::uint32_t kKnown = PEERLANE_BEGIN_AFTER_STREAM | PEERLANE_BEGIN_URGENT;
  if ((flags & ~kKnown) != 0) return fail(EINVAL, "unknown bits in flags: give PEERLANE_BEGIN_ values only");
  int code = 0;
  auto* const planner = pl::planner_of(copier, code);
  if (planner == nullptr) return code;
  pl::copy::block_transfer blocks;
  if ((code = read_blocks(given, blocks)) != 0) return code;
  pl::copy::planner::async_options wanted;
  wanted.has_after = (flags & PEERLANE_BEGIN_AFTER_STREAM) != 0;
  wanted.after = static_cast<pl::cu::stream_t>(stream);
  wanted.is_urgent = (flags & PEERLANE_BEGIN_URGENT) != 0;
  auto begun = planner->begin_blocks(blocks, wanted);
  if (!begun) return fail(begun.error());
  return pl::add_operation(copier, *std::move(begun), blocks.bytes(), *op);
}
PL_NO_EXCEPTIONS
