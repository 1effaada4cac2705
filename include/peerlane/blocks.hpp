// SPDX-License-Identifier: Apache-2.0
// C++ API of blocks: spans over the C calls of <peerlane/blocks.h>, which describes each call; link libpeerlane.
//
//   peerlane::paged_memory gpu{planes, pages * 8192, 8192, gpu_blocks};      // spans of addresses and of int32_t or int64_t
//   auto moved = peerlane::begin_blocks(*copier, host, gpu, 8192);           // result<operation>
//   moved->wait();
#pragma once

#include <peerlane/blocks.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <peerlane/copy.hpp>
#include <span>

namespace peerlane {

// One side of a copy, as a view. Keep the arrays until the call has returned, and the memory until the operation has ended.
struct paged_memory {
  std::span<const std::uint64_t> planes;
  std::size_t plane_size_bytes = 0;
  std::size_t stride_bytes = 0;
  peerlane_memory memory = PEERLANE_MEMORY_ANY;
  std::span<const std::int32_t> indices;       // or
  std::span<const std::int64_t> wide_indices;  // both empty: 0, 1, 2, ...
};

// Blocks by address, as a view. If `sizes_bytes` is empty, all blocks have block_size_bytes.
struct block_list {
  std::span<const std::uint64_t> destinations, sources, sizes_bytes;
  std::size_t block_size_bytes = 0;
  peerlane_memory destination_memory = PEERLANE_MEMORY_ANY, source_memory = PEERLANE_MEMORY_ANY;
};

namespace detail {
inline peerlane_paged_memory to_c(const paged_memory& side) noexcept {
  peerlane_paged_memory out{};
  out.planes = side.planes.data();
  out.plane_size_bytes = side.plane_size_bytes;
  out.stride_bytes = side.stride_bytes;
  out.memory = side.memory;
  const bool is_wide = !side.wide_indices.empty();
  out.index_size_bytes = is_wide ? 8 : 4;
  if (is_wide) out.indices = side.wide_indices.data();
  else if (!side.indices.empty()) out.indices = side.indices.data();
  return out;
}
inline std::size_t count_of(const paged_memory& side) noexcept {
  return side.wide_indices.empty() ? side.indices.size() : side.wide_indices.size();
}
// The blocks of both sides; an error if their numbers differ.
inline result<peerlane_blocks> to_c(const paged_memory& destination, const paged_memory& source,
                                    std::size_t block_size_bytes) {
  const std::size_t written = count_of(destination), read = count_of(source);
  if (destination.planes.size() != source.planes.size())
    return failure{EINVAL, "the destination and the source differ in number of planes"};
  if (written != 0 && read != 0 && written != read)
    return failure{EINVAL, "the destination and the source differ in number of indices"};
  peerlane_blocks out{};
  out.destination = to_c(destination);
  out.source = to_c(source);
  out.plane_count = source.planes.size();
  out.block_size_bytes = block_size_bytes;
  out.count = written != 0 ? written : read;
  return out;
}
inline result<peerlane_block_list> to_c(const block_list& list) {
  const std::size_t count = list.destinations.size();
  if (list.sources.size() != count || (!list.sizes_bytes.empty() && list.sizes_bytes.size() != count))
    return failure{EINVAL, "the list's arrays differ in length"};
  peerlane_block_list out{};
  out.destinations = list.destinations.data();
  out.sources = list.sources.data();
  out.sizes_bytes = list.sizes_bytes.empty() ? nullptr : list.sizes_bytes.data();
  out.block_size_bytes = list.block_size_bytes;
  out.count = count;
  out.destination_memory = list.destination_memory;
  out.source_memory = list.source_memory;
  return out;
}
}  // namespace detail

// A side without indices uses the blocks 0, 1, 2, ..., as many as the other side has.
inline result<operation> begin_blocks(const copier& by_copier, const paged_memory& destination, const paged_memory& source,
                                      std::size_t block_size_bytes, std::uint32_t flags = PEERLANE_BEGIN_DEFAULT,
                                      void* stream = nullptr) {
  auto blocks = detail::to_c(destination, source, block_size_bytes);
  if (!blocks) return blocks.error();
  peerlane_op_t begun = PEERLANE_OP_INIT;
  if (const int code = peerlane_blocks_begin(by_copier.get(), &*blocks, flags, stream, &begun))
    return failure{code, peerlane_last_error()};
  return operation(begun);
}
inline status copy_blocks(const copier& by_copier, const paged_memory& destination, const paged_memory& source,
                          std::size_t block_size_bytes) {
  auto blocks = detail::to_c(destination, source, block_size_bytes);
  if (!blocks) return blocks.error();
  return detail::to_status(peerlane_blocks_copy(by_copier.get(), &*blocks));
}

inline result<operation> begin_block_list(const copier& by_copier, const block_list& list,
                                          std::uint32_t flags = PEERLANE_BEGIN_DEFAULT, void* stream = nullptr) {
  auto blocks = detail::to_c(list);
  if (!blocks) return blocks.error();
  peerlane_op_t begun = PEERLANE_OP_INIT;
  if (const int code = peerlane_block_list_begin(by_copier.get(), &*blocks, flags, stream, &begun))
    return failure{code, peerlane_last_error()};
  return operation(begun);
}
inline status copy_block_list(const copier& by_copier, const block_list& list) {
  auto blocks = detail::to_c(list);
  if (!blocks) return blocks.error();
  return detail::to_status(peerlane_block_list_copy(by_copier.get(), &*blocks));
}

}  // namespace peerlane
