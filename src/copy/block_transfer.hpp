// SPDX-License-Identifier: Apache-2.0
// Many blocks of one size between two paged memories, as one operation, such as pages of a KV cache between GPU and
// host.
//
// A paged memory has several planes (one for each layer and for K and V), each an array of blocks at a constant stride.
// One list of indices serves all planes of a side:
//
//   for each plane p, for each i < count:
//     destination.planes[p] + destination.index(i) * destination.stride
//         <-  source.planes[p] + source.index(i) * source.stride
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/status.hpp"
#include "copy/transfer.hpp"

namespace pl::copy {

// Block numbers in the caller's array, which is not copied. Without an array: 0, 1, 2, ...
class block_indices {
 public:
  block_indices() = default;
  explicit block_indices(const std::int32_t* numbers) : numbers_(numbers), is_wide_(false) {}
  explicit block_indices(const std::int64_t* numbers) : numbers_(numbers), is_wide_(true) {}

  bool is_given() const noexcept { return numbers_ != nullptr; }
  std::int64_t operator[](std::size_t i) const noexcept {
    if (numbers_ == nullptr) return static_cast<std::int64_t>(i);
    if (is_wide_) return static_cast<const std::int64_t*>(numbers_)[i];
    return static_cast<const std::int32_t*>(numbers_)[i];
  }
  // Calls take(number_of), where number_of(i) is (*this)[i] without checking the kind of array, for loops over all
  // indices. Negative numbers become large ones.
  template <class Take>
  decltype(auto) visit(Take&& take) const {
    if (numbers_ == nullptr) return take([](std::size_t i) { return static_cast<std::uint64_t>(i); });
    if (is_wide_) {
      const auto* const wide = static_cast<const std::int64_t*>(numbers_);
      return take([wide](std::size_t i) { return static_cast<std::uint64_t>(wide[i]); });
    }
    const auto* const narrow = static_cast<const std::int32_t*>(numbers_);
    return take([narrow](std::size_t i) { return static_cast<std::uint64_t>(std::int64_t{narrow[i]}); });
  }

 private:
  const void* numbers_ = nullptr;
  bool is_wide_ = false;
};

struct paged_memory {
  std::span<const std::uint64_t> planes;  // address of each plane's block 0
  std::uint64_t plane_bytes = 0;   // from a plane's first byte to the end of its last block; indices are checked against it
  std::uint64_t stride_bytes = 0;  // from one block of a plane to the next; at least a block
  block_indices indices;
};

struct block_transfer {
  direction way = direction::to_device;
  paged_memory destination, source;  // with the same number of planes
  std::uint64_t block_bytes = 0;
  std::size_t count = 0;  // of each plane

  // Bytes that are moved. Does not overflow for a transfer that check() has accepted.
  std::uint64_t bytes() const noexcept { return block_bytes * count * destination.planes.size(); }
};

// Checks the transfer before anything moves. EINVAL names the first error: sizes and strides, an index outside of its
// plane, a destination block that is written twice, destination planes that share bytes, a block that is both read and
// written. Reads no memory except the indices.
status check(const block_transfer& blocks);

// Calls each(plane, destination, source, size_bytes) until a call fails. Blocks that are adjacent on both sides become
// one call.
template <class Each>
status for_each_piece(const block_transfer& blocks, Each&& each) {
  const paged_memory &written = blocks.destination, &read = blocks.source;
  const bool may_join = written.stride_bytes == blocks.block_bytes && read.stride_bytes == blocks.block_bytes;
  constexpr std::uint64_t kMaxJoinedBytes = std::uint64_t{1} << 30;
  for (std::size_t plane = 0; plane < written.planes.size(); ++plane) {
    for (std::size_t i = 0; i < blocks.count;) {
      const auto target = static_cast<std::uint64_t>(written.indices[i]),
                 origin = static_cast<std::uint64_t>(read.indices[i]);
      std::uint64_t size_bytes = blocks.block_bytes;
      std::uint64_t joined = 1;
      for (++i; may_join && i < blocks.count && size_bytes < kMaxJoinedBytes &&
                static_cast<std::uint64_t>(written.indices[i]) == target + joined &&
                static_cast<std::uint64_t>(read.indices[i]) == origin + joined;
           ++i, ++joined)
        size_bytes += blocks.block_bytes;
      if (auto done = each(plane, written.planes[plane] + target * written.stride_bytes,
                           read.planes[plane] + origin * read.stride_bytes, size_bytes);
          !done)
        return done;
    }
  }
  return {};
}

}  // namespace pl::copy
