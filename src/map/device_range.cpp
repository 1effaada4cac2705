// SPDX-License-Identifier: Apache-2.0
#include "map/device_range.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace pl {
namespace {

constexpr std::uint64_t kSmallestAllocationStep = 512;  // CUDA hands out device memory in steps of at least this
constexpr std::size_t kMaxPieces = 1 << 16;             // bounds the walk: 128 GiB of 2 MiB pieces

// Bytes around `pointer` that one request may use without leaving what the user allocated.
address_range usable_extent(const cu::pointer_info& info) {
  if (info.object.size_bytes == 0) return info.allocation;
  const std::uint64_t begin = std::max(info.allocation.begin, info.object.begin);
  const std::uint64_t end = std::min(info.allocation.end(), info.object.end());
  return {begin, end > begin ? end - begin : 0};
}

// Whether the reserved range continues after the mapped object, which happens only with VMM reservations.
bool may_continue(const cu::pointer_info& info) {
  return info.object.size_bytes != 0 && info.allocation.end() > info.object.end();
}

failure beyond_allocation(address_range requested, std::uint64_t end) {
  return failure{
      EINVAL, format("0x%llx + %llu bytes leaves its allocation, which ends %llu bytes earlier at 0x%llx",
                     static_cast<unsigned long long>(requested.begin), static_cast<unsigned long long>(requested.size_bytes),
                     static_cast<unsigned long long>(requested.end() - end), static_cast<unsigned long long>(end))};
}

// First address of our memory in [begin, end), probed in allocation steps.
result<cu::pointer_info> first_known(const cu::driver_table& cuda, std::uint64_t begin, std::uint64_t end) {
  auto info = cu::inspect_pointer(cuda, begin);
  for (std::uint64_t address = align_down(begin, kSmallestAllocationStep) + kSmallestAllocationStep; !info && address < end;
       address += kSmallestAllocationStep) {
    auto next = cu::inspect_pointer(cuda, address);
    if (next) return next;
  }
  return info;
}

status check_exact(const cu::driver_table& cuda, address_range requested, const cu::pointer_info& first) {
  cu::pointer_info info = first;
  for (std::size_t walked = 0; walked < kMaxPieces; ++walked) {
    const address_range extent = usable_extent(info);
    if (requested.end() <= extent.end()) return {};
    if (!may_continue(info)) return beyond_allocation(requested, extent.end());
    auto next = cu::inspect_pointer(cuda, extent.end());
    if (!next) return beyond_allocation(requested, extent.end());
    if (next->device_ordinal != first.device_ordinal)
      return failure{EINVAL, "the range spans memory of several GPUs: map each GPU's part by itself"};
    info = *next;
  }
  return failure{EINVAL, format("the range consists of more than %zu pieces", kMaxPieces)};
}

status check_last_granule(const cu::driver_table& cuda, address_range requested) {
  const std::uint64_t last = requested.end() - 1;
  if (cu::inspect_pointer(cuda, last)) return {};
  const std::uint64_t granule = std::max(align_down(last, kGpuPageBytes), requested.begin);
  auto touched = first_known(cuda, granule, requested.end());
  if (touched) return {};
  auto first = cu::inspect_pointer(cuda, requested.begin);
  if (first) return beyond_allocation(requested, usable_extent(*first).end());
  return touched.error();
}

// Cuts the rounded range at object borders. An object unknown to the driver ends the walk: the range is one piece, and
// the backend decides.
result<std::vector<range_piece>> cut(const cu::driver_table& cuda, address_range rounded, const cu::pointer_info& first) {
  std::vector<range_piece> pieces;
  cu::pointer_info info = first;
  std::uint64_t address = rounded.begin;
  while (address < rounded.end() && pieces.size() < kMaxPieces) {
    if (info.object.size_bytes == 0 || address < info.object.begin) {
      pieces.push_back({{address, rounded.end() - address}, 0, 0, 0});
      return pieces;
    }
    const std::uint64_t end = std::min(rounded.end(), info.object.end());
    pieces.push_back({{address, end - address}, info.object.begin, info.object.size_bytes, info.block_id});
    address = end;
    if (address >= rounded.end()) return pieces;
    auto next = first_known(cuda, address, std::min(address + kGpuPageBytes, rounded.end()));
    if (!next) return beyond_allocation(rounded, address);
    if (next->device_ordinal != first.device_ordinal)
      return failure{EINVAL, "the range spans memory of several GPUs: map each GPU's part by itself"};
    info = *next;
  }
  return failure{EINVAL, format("the range consists of more than %zu pieces", kMaxPieces)};
}

}  // namespace

result<pin_plan> plan_pin(const cu::driver_table& cuda, address_range requested, std::uint64_t granule_bytes,
                          range_rule rule) {
  if (requested.size_bytes == 0) return failure{EINVAL, "size is 0: nothing to pin"};
  if (requested.begin == 0) return failure{EINVAL, "the device address is 0"};
  const auto rounded = round_outwards(requested, granule_bytes);
  if (!rounded) return failure{EINVAL, "address plus size overflows"};
  const bool exact = rule == range_rule::exact;
  const std::uint64_t probe_end = std::min(requested.end(), align_down(requested.begin, kGpuPageBytes) + kGpuPageBytes);
  auto first = exact ? cu::inspect_pointer(cuda, requested.begin) : first_known(cuda, requested.begin, probe_end);
  if (!first) return first.error();
  if (auto s = exact ? check_exact(cuda, requested, *first) : check_last_granule(cuda, requested); !s) return s.error();
  auto pieces = cut(cuda, *rounded, *first);
  if (!pieces) return pieces.error();
  const address_range extent = usable_extent(*first);
  const std::uint64_t begin = std::max(requested.begin, extent.begin), end = std::min(requested.end(), extent.end());
  const address_range owned{begin, end > begin ? end - begin : 0};
  return pin_plan{requested, *rounded, owned, first->device_ordinal, first->context, *std::move(pieces)};
}

}  // namespace pl
