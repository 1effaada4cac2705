// SPDX-License-Identifier: Apache-2.0
// Lists of blocks with individual addresses (block_list.hpp): one list for a DMA channel if both sides allow it,
// otherwise a list of copies like any other caller's.
#include <algorithm>
#include <cerrno>
#include <map>
#include <vector>

#include "base/text.hpp"
#include "copy/block_list.hpp"
#include "copy/block_order.hpp"
#include "copy/completion.hpp"
#include "copy/planner_impl.hpp"

namespace pl::copy {
namespace {

constexpr std::uint64_t kMaxJoinedBytes = std::uint64_t{1} << 30;

failure about_block(const char* role, std::size_t block, const failure& reason) {
  return {reason.code, format("block %zu of the %s: %s", block, role, reason.message.c_str())};
}

}  // namespace

// The memory at the blocks' addresses. A list names few allocations, in any order, and the driver is asked once for
// each.
class planner::block_places {
 public:
  block_places(const planner& owner, const block_list& list) : owner_(owner), list_(list) {}

  // Before anything moves. EINVAL names the block.
  status classify() {
    kinds_of_blocks_.resize(list_.count());
    for (std::size_t i = 0; i < list_.count(); ++i) {
      if (list_.size(i) == 0) continue;
      const fragment whole{list_.destinations[i], list_.sources[i], list_.size(i), 0};
      auto first = find(i, whole);
      if (!first) return first.error();
      kinds_of_blocks_[i] = first->kind;
      if (first->size_bytes == whole.size_bytes) continue;
      if (auto good = split(i, whole, *first); !good) return good;
      kinds_of_blocks_[i] = kSplit;
    }
    return {};
  }

  // For the channel: whether all blocks are in memory of one context that it reaches.
  bool are_reachable() const {
    for (const sides& one : kinds_)
      if (!is_for_channels(one.other) || !one.is_listed_with(kinds_[0])) return false;
    return !kinds_.empty();
  }
  sides& first() { return kinds_[0]; }
  bool are_of_one_kind() const { return kinds_.size() == 1 && fragments_.empty(); }

  // Calls each(sides, destination, source, size_bytes) until a call fails; blocks that are adjacent on both sides
  // become one call.
  template <class Each>
  status for_each_piece(Each&& each) const {
    for (std::size_t i = 0; i < list_.count();) {
      if (kinds_of_blocks_[i] == kSplit) {
        for (const fragment& one : fragments_.at(i++))
          if (auto done = each(kinds_[one.kind], one.destination, one.source, one.size_bytes); !done) return done;
        continue;
      }
      const std::size_t begin = i;
      std::uint64_t size_bytes = list_.size(i);
      for (++i; i < list_.count() && size_bytes != 0 && size_bytes < kMaxJoinedBytes &&
                list_.destinations[i] == list_.destinations[begin] + size_bytes &&
                list_.sources[i] == list_.sources[begin] + size_bytes && list_.size(i) != 0 &&
                kinds_of_blocks_[i] == kinds_of_blocks_[begin];
           ++i)
        size_bytes += list_.size(i);
      if (size_bytes == 0) continue;
      if (auto done = each(kinds_[kinds_of_blocks_[begin]], list_.destinations[begin], list_.sources[begin], size_bytes);
          !done)
        return done;
    }
    return {};
  }

 private:
  // The part of a block that lies in one allocation on each side.
  struct fragment {
    std::uint64_t destination, source, size_bytes;
    std::uint32_t kind;
  };
  // For memory that was pinned in pieces: a block may lie in two of them.
  status split(std::size_t block, fragment rest, fragment first) {
    auto& all = fragments_[block];
    for (all.push_back(first); rest.size_bytes != first.size_bytes; all.push_back(first)) {
      rest.destination += first.size_bytes;
      rest.source += first.size_bytes;
      rest.size_bytes -= first.size_bytes;
      auto next = find(block, rest);
      if (!next) return next.error();
      first = *next;
    }
    return {};
  }

  bool is_of_kind(const sides& kind, address_range device, address_range other) const {
    if (!kind.device.allocation.contains(device)) return false;
    if (list_.way == direction::on_device) return kind.source.allocation.contains(other);
    return kind.host.is_pinned && kind.host.allocation.contains(other);
  }

  // The first part of `wanted` that lies in one kind of memory; almost always all of it.
  result<fragment> find(std::size_t block, fragment wanted) {
    const bool is_read_first = list_.way == direction::to_host;  // the device's side
    const address_range destination{wanted.destination, wanted.size_bytes}, source{wanted.source, wanted.size_bytes};
    const address_range device = is_read_first ? source : destination, other = is_read_first ? destination : source;
    if (!kinds_.empty() && is_of_kind(kinds_[last_], device, other)) return wanted.kind = last_, wanted;
    const char* const device_role = is_read_first ? "source" : "destination";
    const char* const other_role = is_read_first ? "destination" : "source";
    sides made;
    made.way = list_.way;
    if (auto good = inspect_device(device_role, block, device, made.device); !good) return good.error();
    std::uint64_t other_begin = kPageable;
    if (list_.way == direction::on_device) {
      if (auto good = inspect_device(other_role, block, other, made.source); !good) return good.error();
      made.other = made.device.device_ordinal == made.source.device_ordinal ? other_side::same_gpu : other_side::peer_gpu;
      other_begin = made.source.allocation.begin;
    } else {
      if (auto good = inspect_host_side(other_role, block, other, made); !good) return good.error();
      if (made.other == other_side::pinned) {
        other_begin = made.host.allocation.begin;
        wanted.size_bytes = std::min(wanted.size_bytes, made.host.allocation.end() - other.begin);
      }
    }
    made.other_is_known = true;
    const auto [place, is_new] =
        numbers_.try_emplace({made.device.allocation.begin, other_begin}, static_cast<std::uint32_t>(kinds_.size()));
    if (is_new) kinds_.push_back(std::move(made));
    return wanted.kind = last_ = place->second, wanted;
  }

  status inspect_device(const char* role, std::size_t block, address_range range, cu::pointer_info& out) {
    if (auto known = devices_.upper_bound(range.begin); known != devices_.begin())
      if ((--known)->second.allocation.contains(range)) return out = known->second, status();
    if (const auto* const registered = owner_.registered(range.begin, range.size_bytes)) {
      out = *registered;
    } else {
      auto info = cu::inspect_pointer(owner_.cuda_, range.begin);
      if (!info) return about_block(role, block, info.error());
      out = *info;
    }
    if (!out.allocation.contains(range))
      return about_block(
          role, block,
          {EINVAL, format("0x%llx and %llu bytes: its allocation ends %llu bytes after its start",
                          static_cast<unsigned long long>(range.begin), static_cast<unsigned long long>(range.size_bytes),
                          static_cast<unsigned long long>(out.allocation.end() - range.begin))});
    devices_[out.allocation.begin] = out;
    return {};
  }

  status inspect_host_side(const char* role, std::size_t block, address_range range, sides& made) {
    made.other = other_side::pinned;
    if (auto known = hosts_.upper_bound(range.begin); known != hosts_.begin())
      if ((--known)->second.allocation.contains({range.begin, 1})) return made.host = known->second, status();
    if (!owner_.find_registered_host(range.begin, range.size_bytes, made.host)) {
      const gpu_context context{&owner_.cuda_, made.device.device_ordinal, made.device.context};
      made.host =
          inspect_host(owner_.cuda_, host_pointer(range.begin), 1, made.device.context != nullptr ? &context : nullptr);
    }
    // If the driver reports a range only in the GPU's addresses, it is valid for this block alone, so such memory is
    // treated like memory that is not pinned.
    if (made.host.is_pinned && made.host.allocation.contains({range.begin, 1})) {
      hosts_[made.host.allocation.begin] = made.host;
      return {};
    }
    made.other = other_side::pageable;
    if (!made.host.is_pinned && cu::find_device_memory(owner_.cuda_, range.begin))
      return about_block(role, block, {EINVAL, "GPU memory, where block 0 is host memory"});
    return {};
  }

  static constexpr std::uint32_t kSplit = UINT32_MAX;
  static constexpr std::uint64_t kPageable = 0;  // no allocation begins there
  const planner& owner_;
  const block_list& list_;
  std::map<std::uint64_t, cu::pointer_info> devices_;  // by start of the allocation
  std::map<std::uint64_t, host_memory> hosts_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> numbers_;
  std::vector<sides> kinds_;
  std::vector<std::uint32_t> kinds_of_blocks_;              // or kSplit
  std::map<std::size_t, std::vector<fragment>> fragments_;  // of split blocks
  std::uint32_t last_ = 0;
};

// For blocks in memory that one description covers; sorted by place in host memory if that helps (block_order.hpp).
status planner::add_of_one_kind(dma_engine::list& pieces, const block_list& list, const sides& kind) {
  const dma_engine::sides ends = sides_for_channel(kind);
  const std::span<const std::uint64_t> host = list.way == direction::to_host ? list.destinations : list.sources;
  const auto add = [&](std::size_t count, auto number) {
    return pieces.add_all(
        count, true, ends, [&](std::size_t i) { return list.destinations[number(i)]; },
        [&](std::size_t i) { return list.sources[number(i)]; }, [&](std::size_t i) { return list.size(number(i)); });
  };
  const std::size_t count = list.count();
  const bool is_sorted =
      list.way != direction::on_device && count != 0 &&
      block_order::helps(count, list.bytes() / count, [&](std::size_t i) { return host[i] / kHostPageBytes; });
  const std::uint64_t least = is_sorted ? *std::min_element(host.begin(), host.end()) / kHostPageBytes : 0;
  if (!is_sorted || *std::max_element(host.begin(), host.end()) / kHostPageBytes - least > UINT32_MAX)
    return add(count, [](std::size_t i) { return i; });
  const borrowed_orders orders;
  block_order& order = orders->rest;
  const std::size_t head = block_order::head(count);
  for (const auto& [begin, end] : {std::pair{std::size_t{0}, head}, std::pair{head, count}}) {
    const auto sorted = order.sort(begin, end, [&](std::size_t i) {
      return block_order::entry{static_cast<std::uint32_t>(host[i] / kHostPageBytes - least), static_cast<std::uint32_t>(i)};
    });
    if (auto added = add(sorted.size(), [sorted](std::size_t i) { return sorted[i].tag; }); !added) return added;
    if (end == count) break;
    if (auto given = pieces.give(); !given) return given;
  }
  return {};
}

// EAGAIN: the blocks take another path, and nothing is in progress.
result<dma_engine::operation> planner::list_on_channel(const block_list& list, block_places& places, bool is_urgent) {
  if (!places.are_reachable()) return failure{EAGAIN, "not for one DMA channel"};
  auto state = state_of(places.first().list_mover());
  if (!state) return failure{EAGAIN, state.error().message};
  auto channels = (*state)->channels();
  if (!channels) return failure{EAGAIN, channels.error().message};
  const std::uint64_t size_bytes = list.bytes();
  dma_engine::list pieces(**channels, list.way, queue_for(places.first().other, is_urgent || size_bytes <= kMaxQuickBytes));
  status added;
  if (places.are_of_one_kind()) {
    added = add_of_one_kind(pieces, list, places.first());
  } else {
    added =
        places.for_each_piece([&](const sides& kind, std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) {
          return pieces.add(destination, source, bytes, sides_for_channel(kind));
        });
  }
  if (!added) return failure{EAGAIN, added.error().message};
  auto begun = pieces.submit();
  if (!begun) return failure{EAGAIN, begun.error().message};
  count(method::dma_channel, size_bytes, list.count());
  return begun;
}

result<completion> planner::begin_block_list(const block_list& list, const async_options& wanted) {
  if (!is_mine()) return wrong_process();
  if (auto good = check(list); !good) return good.error();
  return begin_checked_list(list, wanted);
}

result<completion> planner::begin_checked_list(const block_list& list, const async_options& wanted) {
  completion made;
  if (list.bytes() == 0) return made;
  block_places places(*this, list);
  if (auto good = places.classify(); !good) return good.error();
  if (!wanted.has_after && uses_channels_) {
    auto begun = list_on_channel(list, places, wanted.is_urgent);
    if (begun) {
      made.owner_ = this;
      if (auto state = state_of(places.first().list_mover())) made.state_ = *state;
      made.on_channel_.push_back(*std::move(begun));
      return made;
    }
    if (begun.code() != EAGAIN) return begun.error();
  }
  std::vector<transfer> copies;
  (void)places.for_each_piece(
      [&](const sides&, std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) -> status {
        copies.push_back({list.way, destination, source, bytes});
        return {};
      });
  return begin(copies, wanted);
}

status planner::copy_block_list(const block_list& list) {
  auto begun = begin_block_list(list, {});
  return begun ? begun->wait() : status(begun.error());
}

}  // namespace pl::copy
