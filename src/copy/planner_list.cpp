// SPDX-License-Identifier: Apache-2.0
// Many copies in one call: short ones share one fence, one message to the GPU engine or one completion word.
#include <algorithm>
#include <cstring>
#include <vector>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"
#include "copy/planner_impl.hpp"

namespace pl::copy {
namespace {

constexpr std::size_t kShortBytes = 4096;                   // largest piece that is worth gathering
constexpr std::size_t kGatherBytes = 2 * kLowLatencyBytes;  // maximum of one message
constexpr std::size_t kLoadPieces = 2;                      // up to this many pieces cost less by loads

bool is_short(const transfer& transfer) { return transfer.rows == 1 && transfer.row_bytes <= kShortBytes; }

}  // namespace

// Stores without a fence between them. Pieces of one allocation are looked up once, because the call is one operation.
status planner::store_list(std::span<const transfer> list) {
  auto fence = arch::mapping_type::none;
  cpu_place place;
  cu::pointer_info info;
  std::uint64_t place_begin = 0, place_end = 0;
  status bad;
  for (const auto& transfer : list) {
    if (transfer.src == 0) {
      bad = failure{EINVAL, format("the source of the list's piece for 0x%llx: a null pointer",
                                   static_cast<unsigned long long>(transfer.dst))};
      break;
    }
    if (transfer.dst < place_begin || transfer.dst >= place_end || transfer.row_bytes > place_end - transfer.dst) {
      sides ends;
      bad = inspect(transfer, ends);
      if (!bad) break;
      // A range around the piece that covers as much of the list as one cache entry can map.
      const std::uint64_t reachable = std::min<std::uint64_t>(ends.device.allocation.end() - transfer.dst, 1u << 20);
      auto reached = reach(transfer.dst, reachable, ends.device);
      std::uint64_t length = reachable;
      if (!reached) {
        reached = reach(transfer.dst, transfer.row_bytes, ends.device);
        length = transfer.row_bytes;
      }
      if (!reached) {
        if (bad = run_or_fall_back(transfer, ends); !bad) break;
        continue;
      }
      if (fence != arch::mapping_type::none) arch::publish_to_device(fence);
      place = *std::move(reached);
      place_begin = transfer.dst;
      place_end = transfer.dst + length;
      fence = place.type;
    }
    arch::copy_to_unfenced(place.type, place.data + (transfer.dst - place_begin), host_pointer(transfer.src),
                           transfer.row_bytes);
    count(method::cpu_store, transfer.row_bytes);
  }
  if (fence != arch::mapping_type::none) arch::publish_to_device(fence);
  return bad;
}

// The GPU engine gathers the pieces in pinned memory, and the CPU copies them to their destinations. EAGAIN: nothing
// was done.
status planner::gather_list(std::span<const transfer> list, sides& ends) {
  auto engine = open_engine(ends);
  if (!engine) return engine.error();
  std::vector<engine::list_entry> entries;
  entries.reserve(list.size());
  std::size_t total = 0;
  for (const auto& transfer : list) {
    entries.push_back({transfer.src, total, transfer.row_bytes, 0});
    total += (transfer.row_bytes + 15) / 16 * 16;  // aligned stores for the GPU
  }
  struct scatter {
    std::span<const transfer> list;
    const std::vector<engine::list_entry>& entries;
  } scattered{list, entries};
  auto got = (*engine)->gather(
      entries, total,
      [](void* context, const std::byte* data) {
        const auto& target = *static_cast<scatter*>(context);
        for (std::size_t i = 0; i < target.list.size(); ++i)
          std::memcpy(host_pointer(target.list[i].dst), data + target.entries[i].dst, target.list[i].row_bytes);
      },
      &scattered);
  if (!got) return got.error();
  if (*got != gpu_engine::fate::done) return failure{EAGAIN, "the GPU engine did not take the list"};
  for (const auto& transfer : list) count(method::engine_bounce, transfer.row_bytes);
  return {};
}

// One ticket for everything that DMA can do without the CPU. Takes pieces of one context from the front, and returns
// how many.
result<std::size_t> planner::submit_list(std::span<const transfer> list, std::span<sides> ends, copy_engine*& dma,
                                         copy_engine::ticket& ticket) {
  auto first = state_of(list[0].way == direction::on_device ? ends[0].source : ends[0].device);
  if (!first) return first.error();
  std::size_t count_of = 0;
  while (count_of < list.size()) {
    const auto& transfer = list[count_of];
    auto state = state_of(transfer.way == direction::on_device ? ends[count_of].source : ends[count_of].device);
    if (!state) return state.error();
    if (*state != *first) break;
    if (transfer.way != direction::on_device && ends[count_of].other != other_side::pinned) break;
    ++count_of;
  }
  if (count_of == 0) return count_of;
  auto opened = (*first)->dma();
  if (!opened) return opened.error();
  auto queued = (*opened)->submit(list.first(count_of));
  if (!queued) return queued.error();
  for (const auto& transfer : list.first(count_of)) count(method::copy_engine, transfer.bytes());
  dma = *opened;
  ticket = *queued;
  return count_of;
}

// Whether a DMA channel moves the list sooner than the methods below: the cost of a list there (docs/results/dma),
// compared with a CPU store or load for each short piece. A channel has one direction.
bool planner::is_for_channel(std::span<const transfer> list) const noexcept {
  constexpr double kListNs = 5500, kBlockNs = 25, kBytesPerNs = 50;
  if (!uses_channels_ || list.size() < 2) return false;
  for (const auto& transfer : list)
    if (transfer.way != list[0].way) return false;
  double by_cpu_ns = 0, by_channel_ns = kListNs;
  for (const auto& transfer : list) {
    const bool to_device = transfer.way == direction::to_device;
    by_channel_ns += static_cast<double>(transfer.rows) * kBlockNs + static_cast<double>(transfer.bytes()) / kBytesPerNs;
    if (transfer.way == direction::on_device || !is_short(transfer)) return true;  // CUDA would take them one by one
    by_cpu_ns += costs_.cost(transfer.way, other_side::pageable, {to_device ? method::cpu_store : method::cpu_load, 1},
                             transfer.row_bytes);
    if (by_cpu_ns > by_channel_ns + static_cast<double>(list.size()) * kBlockNs) return true;
  }
  return false;
}

// Pieces in the memory of the previous one are not looked up again, because the call is one operation.
status planner::add_to_list(dma_engine::list& pieces, std::span<const transfer> list, sides& ends) {
  const bool is_host_first = list[0].way == direction::to_host;
  for (const auto& transfer : list) {
    const std::uint64_t device = is_host_first ? transfer.src : transfer.dst;
    const std::uint64_t other = is_host_first ? transfer.dst : transfer.src;
    const address_range& known = ends.way == direction::on_device ? ends.source.allocation : ends.host.allocation;
    const bool is_known = ends.other_is_known && transfer.rows == 1 &&
                          ends.device.allocation.contains({device, transfer.row_bytes}) &&
                          known.contains({other, transfer.row_bytes});
    if (!is_known) {
      const sides before = ends;  // of the first piece, or the previous one
      ends = {};
      if (auto good = inspect(transfer, ends); !good) return good;
      inspect_other(transfer, ends);
      if (!is_for_channels(ends.other)) return failure{EAGAIN, "not for a DMA channel"};
      if (!ends.is_listed_with(before)) return failure{EAGAIN, "memory of several contexts"};
    }
    if (auto added = pieces.add(transfer, sides_for_channel(ends)); !added)
      return added.code() == ENOTSUP ? failure{EAGAIN, added.error().message} : added;
  }
  return {};
}

// Whether a DMA channel takes the list behind a stream: all pieces have one direction, and lie in memory that it
// reaches.
bool planner::is_for_channel_behind(std::span<const transfer> list, std::span<const sides> ends) const noexcept {
  if (!orders_by_channel_ || list.empty()) return false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& one = list[i];
    if (one.way != list[0].way) return false;
    if (ends[i].other == other_side::pageable || ends[i].other == other_side::peer_gpu) return false;
    // Within one GPU, CUDA's copies are faster from a small size on.
    if (one.way == direction::on_device &&
        costs_.cost(one.way, other_side::same_gpu, {method::dma_channel, 1}, one.bytes()) >
            costs_.cost(one.way, other_side::same_gpu, {method::copy_engine, 1}, one.bytes()))
      return false;
  }
  return true;
}

// The whole list by one DMA channel, behind the stream `after` if given. `ends` are the first copy's. EAGAIN: it takes
// another path, and nothing is in progress.
result<dma_engine::operation> planner::begin_on_channel(std::span<const transfer> list, sides ends,
                                                        const cu::stream_t* after) {
  inspect_other(list[0], ends);
  auto* const channels = find_list_channels(ends);
  if (channels == nullptr) return failure{EAGAIN, "no DMA channel is open"};
  if (!is_for_channels(ends.other)) return failure{EAGAIN, "not for a DMA channel"};
  dma_engine::list pieces(*channels, list[0].way, queue_for(ends.other, true));
  if (after != nullptr) pieces.gather();
  if (auto added = add_to_list(pieces, list, ends); !added) return added.error();
  auto begun = after != nullptr ? pieces.submit_behind(*after) : pieces.submit();
  if (!begun && begun.code() == EBUSY) return begun;
  if (!begun) return failure{EAGAIN, begun.error().message};  // another method reports what is wrong with the GPU
  for (const auto& transfer : list) count(method::dma_channel, transfer.bytes());
  return begun;
}

status planner::copy_list(std::span<const transfer> list) {
  if (std::any_of(list.begin(), list.end(), is_empty)) return copy_list(without_empty(list));
  if (list.size() == 1) return copy(list[0]);
  if (is_for_channel(list)) {
    sides first;
    if (auto good = inspect(list[0], first); !good) return good;
    auto begun = begin_on_channel(list, first);
    if (begun) return begun->wait();
    if (begun.code() != EAGAIN) return begun.error();
  }
  std::vector<transfer> stores, reads, rest;
  for (const auto& transfer : list) {
    if (is_short(transfer) && transfer.way == direction::to_device) stores.push_back(transfer);
    else if (is_short(transfer) && transfer.way == direction::to_host) reads.push_back(transfer);
    else rest.push_back(transfer);
  }
  // The long ones first: they are moved while the CPU copies the short ones.
  std::vector<sides> inspected;
  for (const auto& transfer : rest) {
    sides& ends = inspected.emplace_back();
    if (auto good = inspect(transfer, ends); !good) return good;
    inspect_other(transfer, ends);
  }
  struct in_flight {
    copy_engine* dma;
    copy_engine::ticket ticket;
  };
  std::vector<in_flight> flying;
  status outcome;
  std::size_t done = 0;
  while (done < rest.size() && outcome) {
    in_flight one{};
    auto taken = submit_list(std::span(rest).subspan(done), std::span(inspected).subspan(done), one.dma, one.ticket);
    if (!taken) {
      outcome = taken.error();
    } else if (*taken != 0) {
      flying.push_back(one);
      done += *taken;
    } else {
      outcome = run_or_fall_back(rest[done], inspected[done]);
      ++done;
    }
  }
  if (outcome && !stores.empty()) outcome = store_list(stores);
  if (outcome && !reads.empty()) outcome = read_list(reads);
  for (const auto& one : flying) {
    auto ended = one.dma->wait(one.ticket);
    if (!ended && outcome) outcome = ended;
  }
  return outcome;
}

status planner::read_list(std::span<const transfer> list) {
  while (!list.empty()) {
    sides first;
    if (auto good = inspect(list[0], first); !good) return good;
    // As many as one message carries, all of one context.
    std::size_t pieces = 0;
    std::size_t total = 0;
    while (pieces < list.size() && pieces < engine::kListEntries) {
      const std::size_t padded = (list[pieces].row_bytes + 15) / 16 * 16;
      if (total + padded > kGatherBytes) break;
      if (!first.device.allocation.contains({list[pieces].src, list[pieces].row_bytes})) {
        sides ends;
        if (auto good = inspect(list[pieces], ends); !good) return good;
        if (ends.device.context != first.device.context || ends.device.device_ordinal != first.device.device_ordinal) break;
      }
      if (list[pieces].dst == 0)
        return failure{EINVAL, format("the destination of the list's piece from 0x%llx: a null pointer",
                                      static_cast<unsigned long long>(list[pieces].src))};
      total += padded;
      ++pieces;
    }
    const bool gathers = pieces > kLoadPieces && engine_is_hot(first);
    const status gathered = gathers ? gather_list(list.first(pieces), first) : failure{EAGAIN, "not tried"};
    if (!gathered && gathered.code() != EAGAIN) return gathered;
    if (!gathered)
      for (const auto& transfer : list.first(pieces)) {
        sides ends;
        if (auto good = inspect(transfer, ends); !good) return good;
        if (auto done = run_or_fall_back(transfer, ends); !done) return done;
      }
    list = list.subspan(pieces);
  }
  return {};
}

}  // namespace pl::copy
