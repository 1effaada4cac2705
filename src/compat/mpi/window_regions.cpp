// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/window_regions.hpp"

#include <cerrno>
#include <cstring>

#include "compat/mpi/robust_mutex.hpp"

namespace pl::mpi {
namespace {

bool overlap(address_range a, address_range b) { return a.begin < b.end() && b.begin < a.end(); }

}  // namespace

std::size_t window_regions::bytes_for(int ranks) noexcept { return static_cast<std::size_t>(ranks) * sizeof(table); }

void window_regions::format(void* memory, int ranks) noexcept {
  std::memset(memory, 0, bytes_for(ranks));
  auto* const tables = static_cast<table*>(memory);
  for (int i = 0; i < ranks; ++i) make_robust(tables[i].guard);
}

window_regions::window_regions(void* memory, int rank) noexcept : tables_(static_cast<table*>(memory)), rank_(rank) {}

status window_regions::attach(address_range bytes, const exported_memory& memory) {
  table& own = tables_[rank_];
  const robust_lock held(own.guard);
  region* place = nullptr;
  for (auto& one : own.regions) {
    if (one.serial == 0) place = place == nullptr ? &one : place;
    else if (overlap(one.bytes, bytes) || one.bytes.begin == bytes.begin)
      return failure{EEXIST, "some of this device memory is attached already"};
  }
  if (place == nullptr)
    return failure{ENOSPC,
                   "a rank can attach " + std::to_string(kMaxRegions) + " regions of device memory to a window at a time"};
  *place = {bytes, memory, ++own.last_serial};
  own.count.fetch_add(1, std::memory_order_release);
  return {};
}

bool window_regions::detach(std::uint64_t begin) noexcept {
  table& own = tables_[rank_];
  if (is_empty(rank_)) return false;
  const robust_lock held(own.guard);
  for (auto& one : own.regions)
    if (one.serial != 0 && one.bytes.begin == begin) {
      one.serial = 0;
      own.count.fetch_sub(1, std::memory_order_release);
      return true;
    }
  return false;
}

bool window_regions::is_empty(int target) const noexcept {
  return tables_[target].count.load(std::memory_order_acquire) == 0;
}

std::optional<window_regions::region> window_regions::find(int target, address_range bytes) const noexcept {
  const robust_lock held(tables_[target].guard);
  for (const auto& one : tables_[target].regions)
    if (one.serial != 0 && overlap(one.bytes, bytes)) return one;
  return std::nullopt;
}

bool window_regions::has(int target, std::uint64_t serial) const noexcept {
  const robust_lock held(tables_[target].guard);
  for (const auto& one : tables_[target].regions)
    if (one.serial == serial) return true;
  return false;
}

}  // namespace pl::mpi
