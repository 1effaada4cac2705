// SPDX-License-Identifier: Apache-2.0
#include "copy/block_transfer.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <unordered_set>
#include <vector>

#include "base/checked_math.hpp"
#include "base/text.hpp"
#include "copy/seen_blocks.hpp"

namespace pl::copy {
namespace {

constexpr std::size_t kMaxPlanes = 4096;

using unsigned_ll = unsigned long long;

// The largest index; a negative one counts as a large one.
std::uint64_t last_index(const block_transfer& blocks, const block_indices& indices) {
  return indices.visit([&](auto number) {
    std::uint64_t last = 0;
    for (std::size_t i = 0; i < blocks.count; ++i) last = std::max(last, number(i));
    return last;
  });
}

status check_side(const char* role, const paged_memory& side, const block_transfer& blocks) {
  if (side.stride_bytes < blocks.block_bytes)
    return failure{EINVAL, format("the %s's stride of %llu bytes is shorter than a block of %llu", role,
                                  unsigned_ll{side.stride_bytes}, unsigned_ll{blocks.block_bytes})};
  if (side.plane_bytes < blocks.block_bytes)
    return failure{EINVAL, format("the %s's planes of %llu bytes hold no block of %llu", role, unsigned_ll{side.plane_bytes},
                                  unsigned_ll{blocks.block_bytes})};
  for (std::size_t plane = 0; plane < side.planes.size(); ++plane)
    if (side.planes[plane] == 0 || !checked_add(side.planes[plane], side.plane_bytes))
      return failure{EINVAL, format("plane %zu of the %s: 0x%llx is not a valid address of %llu bytes", plane, role,
                                    unsigned_ll{side.planes[plane]}, unsigned_ll{side.plane_bytes})};
  const std::uint64_t blocks_of_plane = (side.plane_bytes - blocks.block_bytes) / side.stride_bytes + 1;
  if (!side.indices.is_given()) {
    if (blocks.count <= blocks_of_plane) return {};
    return failure{EINVAL, format("%zu blocks are asked for, a plane of the %s holds %llu", blocks.count, role,
                                  unsigned_ll{blocks_of_plane})};
  }
  if (last_index(blocks, side.indices) < blocks_of_plane) return {};
  std::size_t i = 0;
  while (static_cast<std::uint64_t>(side.indices[i]) < blocks_of_plane) ++i;
  return failure{EINVAL, format("index %zu of the %s is %lld; its planes hold blocks 0 to %llu", i, role,
                                static_cast<long long>(side.indices[i]), unsigned_ll{blocks_of_plane - 1})};
}

// One bit for each block of a plane. If few of very many blocks are named, their numbers instead, so that memory
// depends on the number of indices and not on their values.
class block_set {
 public:
  block_set(std::uint64_t blocks, std::size_t count) {
    constexpr std::uint64_t kBitsOfANumber = 512;
    if (blocks / kBitsOfANumber <= count) words_.resize((blocks + 63) / 64);
    else numbers_.reserve(count);
  }
  bool has(std::uint64_t block) const {
    if (words_.empty()) return numbers_.contains(block);
    return block / 64 < words_.size() && (words_[block / 64] >> (block % 64) & 1) != 0;
  }
  // Returns false if the block was already there.
  bool add(std::uint64_t block) {
    if (words_.empty()) return numbers_.insert(block).second;
    const bool is_new = !has(block);
    words_[block / 64] |= std::uint64_t{1} << (block % 64);
    return is_new;
  }

 private:
  std::vector<std::uint64_t> words_;
  std::unordered_set<std::uint64_t> numbers_;
};

bool is_ascending(const block_transfer& blocks, const block_indices& indices) {
  return indices.visit([&](auto number) {
    for (std::size_t i = 1; i < blocks.count; ++i)
      if (number(i) <= number(i - 1)) return false;
    return true;
  });
}

// Whether two arrays of blocks with one stride, beginning at `a` and `b`, can share a byte.
bool can_meet(std::uint64_t a, std::uint64_t b, std::uint64_t plane_bytes, std::uint64_t stride, std::uint64_t block_bytes) {
  const std::uint64_t distance = a > b ? a - b : b - a;
  if (distance >= plane_bytes) return false;
  const std::uint64_t shift = distance % stride;
  return shift < block_bytes || stride - shift < block_bytes;
}

// Planes may lie side by side in memory or be interleaved (a page holds its part of every plane); they must not share
// bytes.
status check_planes_of_destination(const block_transfer& blocks) {
  const paged_memory& written = blocks.destination;
  std::vector<std::uint64_t> sorted(written.planes.begin(), written.planes.end());
  std::sort(sorted.begin(), sorted.end());
  // Planes that overlap the range of this one.
  for (std::size_t i = 0; i < sorted.size(); ++i)
    for (std::size_t next = i + 1; next < sorted.size() && sorted[next] - sorted[i] < written.plane_bytes; ++next)
      if (can_meet(sorted[i], sorted[next], written.plane_bytes, written.stride_bytes, blocks.block_bytes))
        return failure{EINVAL, format("planes 0x%llx and 0x%llx of the destination share bytes", unsigned_ll{sorted[i]},
                                      unsigned_ll{sorted[next]})};
  return {};
}

// The same for numbers too large for seen_blocks.
status check_twice_written_far(const block_transfer& blocks, std::uint64_t last) {
  const block_indices& indices = blocks.destination.indices;
  block_set seen(last + 1, blocks.count);
  for (std::size_t i = 0; i < blocks.count; ++i)
    if (!seen.add(static_cast<std::uint64_t>(indices[i])))
      return failure{EINVAL, format("index %zu of the destination: block %lld is written twice", i,
                                    static_cast<long long>(indices[i]))};
  return {};
}

status check_twice_written(const block_transfer& blocks) {
  const block_indices& indices = blocks.destination.indices;
  if (is_ascending(blocks, indices)) return {};
  // Every index was checked against the plane.
  std::uint64_t last = (blocks.destination.plane_bytes - blocks.block_bytes) / blocks.destination.stride_bytes;
  if (last > seen_blocks::kMaxNumber) last = last_index(blocks, indices);
  if (last > seen_blocks::kMaxNumber) return check_twice_written_far(blocks, last);
  seen_blocks seen(blocks.count, last);
  const std::size_t twice = indices.visit([&](auto number) { return seen.add_all(blocks.count, number); });
  if (twice == blocks.count) return {};
  return failure{EINVAL, format("index %zu of the destination: block %lld is written twice", twice,
                                static_cast<long long>(indices[twice]))};
}

// For blocks that move within one memory: none may be both read and written, since the order of the blocks is
// unspecified.
status check_source_against_destination(const block_transfer& blocks) {
  const paged_memory &written = blocks.destination, &read = blocks.source;
  const std::uint64_t reach = std::max(written.plane_bytes, read.plane_bytes);
  bool is_one_plane = false;
  for (const std::uint64_t target : written.planes)
    for (const std::uint64_t origin : read.planes) {
      const bool is_apart = target >= origin ? target - origin >= read.plane_bytes : origin - target >= written.plane_bytes;
      if (is_apart) continue;
      if (written.stride_bytes != read.stride_bytes)
        return failure{EINVAL, format("plane 0x%llx is read and 0x%llx is written, with other strides, in the same bytes",
                                      unsigned_ll{origin}, unsigned_ll{target})};
      if (target == origin) is_one_plane = true;
      else if (can_meet(target, origin, reach, written.stride_bytes, blocks.block_bytes))
        return failure{EINVAL, format("plane 0x%llx is read and plane 0x%llx is written: they share bytes",
                                      unsigned_ll{origin}, unsigned_ll{target})};
    }
  if (!is_one_plane) return {};
  block_set written_blocks(std::max(last_index(blocks, written.indices), last_index(blocks, read.indices)) + 1,
                           blocks.count);
  for (std::size_t i = 0; i < blocks.count; ++i) written_blocks.add(static_cast<std::uint64_t>(written.indices[i]));
  for (std::size_t i = 0; i < blocks.count; ++i)
    if (written_blocks.has(static_cast<std::uint64_t>(read.indices[i])))
      return failure{EINVAL, format("index %zu of the source: block %lld is read and written", i,
                                    static_cast<long long>(read.indices[i]))};
  return {};
}

}  // namespace

status check(const block_transfer& blocks) {
  const paged_memory &written = blocks.destination, &read = blocks.source;
  if (written.planes.size() != read.planes.size())
    return failure{EINVAL,
                   format("the destination has %zu planes, the source %zu", written.planes.size(), read.planes.size())};
  if (written.planes.size() > kMaxPlanes)
    return failure{EINVAL, format("%zu planes: at most %zu", written.planes.size(), kMaxPlanes)};
  if (blocks.count == 0 || written.planes.empty() || blocks.block_bytes == 0) return {};  // nothing is moved
  if (status good = check_side("destination", written, blocks); !good) return good;
  if (status good = check_side("source", read, blocks); !good) return good;
  const auto bytes_of_plane = checked_mul(blocks.block_bytes, blocks.count);
  if (!bytes_of_plane || !checked_mul(*bytes_of_plane, written.planes.size()))
    return failure{EINVAL, "the blocks' sizes add up to more than 2^64 bytes"};
  if (status good = check_twice_written(blocks); !good) return good;
  if (status good = check_planes_of_destination(blocks); !good) return good;
  if (blocks.way == direction::on_device) return check_source_against_destination(blocks);
  return {};
}

}  // namespace pl::copy
