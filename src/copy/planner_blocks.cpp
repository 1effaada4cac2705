// SPDX-License-Identifier: Apache-2.0
// Blocks between paged memories (block_transfer.hpp): one list for a DMA channel if both sides allow it, otherwise a
// list of copies like any other caller's.
#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/text.hpp"
#include "copy/block_order.hpp"
#include "copy/block_transfer.hpp"
#include "copy/completion.hpp"
#include "copy/planner_impl.hpp"

namespace pl::copy {
namespace {

failure about_plane(const char* role, std::size_t plane, const failure& reason) {
  return {reason.code, format("plane %zu of the %s: %s", plane, role, reason.message.c_str())};
}

// Blocks that are adjacent in both memories can be one copy.
bool may_join(const block_transfer& blocks) {
  return blocks.destination.stride_bytes == blocks.block_bytes && blocks.source.stride_bytes == blocks.block_bytes;
}

bool is_worth_sorting(const block_transfer& blocks) {
  if (blocks.way == direction::on_device) return false;
  const bool to_host = blocks.way == direction::to_host;
  const paged_memory &host = to_host ? blocks.destination : blocks.source,
                     &device = to_host ? blocks.source : blocks.destination;
  // Entries hold 32 bits of each number; check() has compared the numbers with the planes.
  if (!host.indices.is_given() || host.plane_bytes / host.stride_bytes > UINT32_MAX ||
      device.plane_bytes / device.stride_bytes > UINT32_MAX)
    return false;
  return host.indices.visit([&](auto number) { return block_order::helps(blocks.count, blocks.block_bytes, number); });
}

}  // namespace

status planner::inspect_plane(const char* role, const paged_memory& side, std::size_t plane, cu::pointer_info& out) const {
  const address_range range{side.planes[plane], side.plane_bytes};
  if (const auto* const known = registered(range.begin, range.size_bytes)) {
    out = *known;
    return {};
  }
  if (out.allocation.contains(range)) return {};  // of the plane before
  auto info = cu::inspect_pointer(cuda_, range.begin);
  if (!info) return about_plane(role, plane, info.error());
  if (!info->allocation.contains(range))
    return about_plane(
        role, plane,
        {EINVAL, format("0x%llx and %llu bytes: its allocation ends %llu bytes after its start",
                        static_cast<unsigned long long>(range.begin), static_cast<unsigned long long>(range.size_bytes),
                        static_cast<unsigned long long>(info->allocation.end() - range.begin))});
  out = *info;
  return {};
}

// For memory that was registered piece by piece (host pools; PyTorch's threads do that too): only the first and the
// last byte are looked up here, the pieces in between when blocks need them.
host_memory planner::inspect_host_plane(address_range range, const gpu_context* context) const {
  host_memory whole = inspect_host(cuda_, host_pointer(range.begin), range.size_bytes, context);
  if (whole.is_pinned) return whole;
  host_memory first = inspect_host(cuda_, host_pointer(range.begin), 1, context);
  if (!first.is_pinned || first.allocation.size_bytes == 0 ||
      !inspect_host(cuda_, host_pointer(range.end() - 1), 1, context).is_pinned)
    return whole;
  first.allocation = range;
  first.is_in_pieces = true;
  return first;
}

// Interleaved planes (a page holds its part of each) are looked up as one range.
address_range planner::woven_planes(const paged_memory& side) noexcept {
  const auto [first, last] = std::minmax_element(side.planes.begin(), side.planes.end());
  const std::uint64_t shift = *last - *first;
  return shift < side.stride_bytes ? address_range{*first, shift + side.plane_bytes} : address_range{};
}

// Looks up both sides of a plane. `ends` describes the previous plane, which is often in the same allocations.
status planner::inspect_planes(const block_transfer& blocks, std::size_t plane, sides& ends) const {
  ends.way = blocks.way;
  const paged_memory &written = blocks.destination, &read = blocks.source;
  if (blocks.way == direction::on_device) {
    if (auto good = inspect_plane("destination", written, plane, ends.device); !good) return good;
    if (auto good = inspect_plane("source", read, plane, ends.source); !good) return good;
    ends.other = ends.device.device_ordinal == ends.source.device_ordinal ? other_side::same_gpu : other_side::peer_gpu;
    ends.other_is_known = true;
    return {};
  }
  const bool to_host = blocks.way == direction::to_host;
  const paged_memory& device = to_host ? read : written;
  if (auto good = inspect_plane(to_host ? "source" : "destination", device, plane, ends.device); !good) return good;
  const paged_memory& host = to_host ? written : read;
  const address_range range{host.planes[plane], host.plane_bytes};
  if (!ends.other_is_known || !ends.host.is_pinned || !ends.host.allocation.contains(range)) {
    ends.other_is_known = false;
    if (!find_registered_host(range.begin, range.size_bytes, ends.host)) {
      const gpu_context context{&cuda_, ends.device.device_ordinal, ends.device.context};
      const address_range woven = woven_planes(host);
      ends.host =
          inspect_host_plane(woven.contains(range) ? woven : range, ends.device.context != nullptr ? &context : nullptr);
    }
    ends.other = ends.host.is_pinned ? other_side::pinned : other_side::pageable;
    ends.other_is_known = true;
    if (!ends.host.is_pinned && cu::find_device_memory(cuda_, range.begin))
      return about_plane(to_host ? "destination" : "source", plane, {EINVAL, "GPU memory, where plane 0 is host memory"});
  }
  return {};
}

// Adds the plane's blocks between host and GPU in the caller's order.
status planner::add_as_they_are(dma_engine::list& pieces, const block_transfer& blocks, std::span<const sides> planes) {
  const paged_memory &written = blocks.destination, &read = blocks.source;
  for (std::size_t plane = 0; plane < planes.size(); ++plane) {
    const dma_engine::sides ends = sides_for_channel(planes[plane]);
    auto added = written.indices.visit([&](auto target) {
      return read.indices.visit([&](auto origin) {
        return pieces.add_all(
            blocks.count, may_join(blocks), ends,
            [&, base = written.planes[plane], stride = written.stride_bytes](std::size_t i) {
              return base + target(i) * stride;
            },
            [&, base = read.planes[plane], stride = read.stride_bytes](std::size_t i) { return base + origin(i) * stride; },
            [bytes = blocks.block_bytes](std::size_t) { return bytes; });
      });
    });
    if (!added) return added;
  }
  return {};
}

// Adds blocks sorted by place in host memory (block_order.hpp). All planes have the order of the first.
status planner::add_sorted(dma_engine::list& pieces, const block_transfer& blocks, std::span<const sides> planes) {
  const bool to_host = blocks.way == direction::to_host;
  const paged_memory &written = blocks.destination, &read = blocks.source;
  const paged_memory &host = to_host ? written : read, &device = to_host ? read : written;
  const auto add_plane = [&](std::size_t plane, std::span<const block_order::entry> order) {
    const auto host_place = [order, base = host.planes[plane], stride = host.stride_bytes](std::size_t i) {
      return base + order[i].place * stride;
    };
    const auto device_place = [order, base = device.planes[plane], stride = device.stride_bytes](std::size_t i) {
      return base + order[i].tag * stride;
    };
    const auto size = [bytes = blocks.block_bytes](std::size_t) { return bytes; };
    const dma_engine::sides ends = sides_for_channel(planes[plane]);
    return to_host ? pieces.add_all(order.size(), may_join(blocks), ends, host_place, device_place, size)
                   : pieces.add_all(order.size(), may_join(blocks), ends, device_place, host_place, size);
  };
  const borrowed_orders orders;
  const std::size_t head = block_order::head(blocks.count);
  const std::uint64_t places = host.plane_bytes / host.stride_bytes + 1;  // check() has held the numbers against the plane
  return host.indices.visit([&](auto on_host) {
    return device.indices.visit([&](auto on_device) -> status {
      const auto entry_of = [&](std::size_t i) {
        return block_order::entry{static_cast<std::uint32_t>(on_host(i)), static_cast<std::uint32_t>(on_device(i))};
      };
      const auto begin = orders->head.sort(0, head, entry_of, places);
      if (auto added = add_plane(0, begin); !added) return added;
      if (auto given = pieces.give(); !given) return given;
      const auto end = orders->rest.sort(head, blocks.count, entry_of, places);
      if (auto added = add_plane(0, end); !added) return added;
      for (std::size_t plane = 1; plane < planes.size(); ++plane)
        for (const auto part : {begin, end})
          if (auto added = add_plane(plane, part); !added) return added;
      return {};
    });
  });
}

// EAGAIN: the blocks take another path, and nothing is in progress.
result<dma_engine::operation> planner::blocks_on_channel(const block_transfer& blocks, std::span<const sides> planes,
                                                         bool is_urgent) {
  sides first = planes[0];
  for (const sides& ends : planes) {
    if (!is_for_channels(ends.other) || !ends.is_listed_with(first)) return failure{EAGAIN, "not for one DMA channel"};
  }
  auto state = state_of(first.list_mover());
  if (!state) return failure{EAGAIN, state.error().message};
  auto channels = (*state)->channels();
  if (!channels) return failure{EAGAIN, channels.error().message};
  const std::uint64_t size_bytes = blocks.bytes();
  dma_engine::list pieces(**channels, blocks.way, queue_for(first.other, is_urgent || size_bytes <= kMaxQuickBytes));
  const bool is_sorted = is_worth_sorting(blocks);
  if (auto added = is_sorted ? add_sorted(pieces, blocks, planes) : add_as_they_are(pieces, blocks, planes); !added)
    return failure{EAGAIN, added.error().message};
  auto begun = pieces.submit();
  if (!begun) return failure{EAGAIN, begun.error().message};
  count(method::dma_channel, size_bytes, blocks.count * planes.size());
  return begun;
}

// Whether the planes are in host memory that was registered piece by piece, and not completely: a pool that is still
// being pinned.
bool planner::is_pinned_in_pieces(const block_transfer& blocks, std::span<const sides> planes) const noexcept {
  if (blocks.way == direction::on_device) return false;
  const paged_memory& host = blocks.way == direction::to_host ? blocks.destination : blocks.source;
  for (std::size_t plane = 0; plane < planes.size(); ++plane) {
    if (planes[plane].other != other_side::pageable) continue;
    const gpu_context context{&cuda_, planes[plane].device.device_ordinal, planes[plane].device.context};
    if (inspect_host(cuda_, host_pointer(host.planes[plane]), 1, context.handle != nullptr ? &context : nullptr).is_pinned)
      return true;
  }
  return false;
}

result<completion> planner::begin_blocks_one_by_one(const block_transfer& blocks, const async_options& wanted) {
  std::vector<std::uint64_t> destinations, sources, sizes;
  (void)for_each_piece(blocks,
                       [&](std::size_t, std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) -> status {
                         destinations.push_back(destination);
                         sources.push_back(source);
                         sizes.push_back(bytes);
                         return {};
                       });
  return begin_checked_list({blocks.way, destinations, sources, sizes, 0}, wanted);
}

result<completion> planner::begin_blocks(const block_transfer& blocks, const async_options& wanted) {
  if (!is_mine()) return wrong_process();
  if (auto good = check(blocks); !good) return good.error();
  completion made;
  if (blocks.bytes() == 0) return made;
  std::vector<sides> planes(blocks.destination.planes.size());
  for (std::size_t plane = 0; plane < planes.size(); ++plane) {
    if (plane != 0) planes[plane] = planes[plane - 1];
    if (auto good = inspect_planes(blocks, plane, planes[plane]); !good) return good.error();
  }
  if (is_pinned_in_pieces(blocks, planes)) return begin_blocks_one_by_one(blocks, wanted);
  const bool has_pieces =
      std::any_of(planes.begin(), planes.end(), [](const sides& ends) { return ends.host.is_in_pieces; });
  if (!wanted.has_after && uses_channels_) {
    auto begun = blocks_on_channel(blocks, planes, wanted.is_urgent);
    if (begun) {
      made.owner_ = this;
      if (auto state = state_of(planes[0].list_mover())) made.state_ = *state;
      made.on_channel_.push_back(*std::move(begun));
      return made;
    }
    if (begun.code() != EAGAIN) return begun.error();
  }
  if (has_pieces) return begin_blocks_one_by_one(blocks, wanted);
  std::vector<transfer> list;
  (void)for_each_piece(blocks,
                       [&](std::size_t, std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) -> status {
                         list.push_back({blocks.way, destination, source, bytes});
                         return {};
                       });
  return begin(list, wanted);
}

status planner::copy_blocks(const block_transfer& blocks) {
  auto begun = begin_blocks(blocks, {});
  return begun ? begun->wait() : status(begun.error());
}

}  // namespace pl::copy
