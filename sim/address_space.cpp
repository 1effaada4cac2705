// SPDX-License-Identifier: Apache-2.0
#include "sim/address_space.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "base/log.hpp"

namespace pl::sim {
namespace {

// Sanitizers leave little address space to the application, so the ranges shrink under them.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kRangeBytesPerDevice = std::size_t{32} << 30;
#else
constexpr std::size_t kRangeBytesPerDevice = std::size_t{1} << 40;
#endif
constexpr std::size_t kSmallestRangeBytes = std::size_t{4} << 30;

}  // namespace

address_space& address_space::instance() {
  static auto* const instance = new address_space;
  return *instance;
}

address_space::address_space() {
  const std::size_t count = devices().size();
  for (per_device_bytes_ = kRangeBytesPerDevice; per_device_bytes_ >= kSmallestRangeBytes; per_device_bytes_ /= 2) {
    const std::size_t bytes = per_device_bytes_ * count + kGpuPageBytes;
    void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) continue;
    madvise(range, bytes, MADV_DONTDUMP);
    lowest_ = round_up(reinterpret_cast<device_ptr>(range), kGpuPageBytes);
    highest_ = lowest_ + per_device_bytes_ * count;
    break;
  }
  if (lowest_ == 0)
    PL_LOG(error,
           "sim: no address range for device pointers can be reserved: every allocation will fail; raise the limit of "
           "address space (ulimit -v)");
  free_ranges_.resize(count);
  if (lowest_ != 0)
    for (std::size_t i = 0; i < count; ++i) free_ranges_[i][lowest_ + i * per_device_bytes_] = per_device_bytes_;
}

device_ptr address_space::take_range(int device_ordinal, std::size_t bytes, std::size_t alignment, device_ptr hint) {
  const std::lock_guard lock(mutex_);
  auto& ranges = free_ranges_[static_cast<std::size_t>(device_ordinal)];
  const auto carve = [&](auto range, device_ptr base) {
    const device_ptr start = range->first;
    const device_ptr end = start + range->second;
    ranges.erase(range);
    if (base > start) ranges[start] = base - start;
    if (base + bytes < end) ranges[base + bytes] = end - base - bytes;
    return base;
  };
  if (hint != 0 && hint % alignment == 0) {
    auto range = ranges.upper_bound(hint);
    if (range != ranges.begin()) {
      --range;
      const device_ptr end = range->first + range->second;
      if (hint < end && bytes <= end - hint) return carve(range, hint);
    }
  }
  for (auto range = ranges.begin(); range != ranges.end(); ++range) {
    const device_ptr base = round_up(range->first, alignment);
    const device_ptr end = range->first + range->second;
    if (base < end && bytes <= end - base) return carve(range, base);
  }
  return 0;
}

void address_space::give_range(device_ptr base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto& ranges = free_ranges_[(base - lowest_) / per_device_bytes_];
  auto added = ranges.emplace(base, bytes).first;
  if (const auto next = std::next(added); next != ranges.end() && base + bytes == next->first) {
    added->second += next->second;
    ranges.erase(next);
  }
  if (added != ranges.begin()) {
    const auto previous = std::prev(added);
    if (previous->first + previous->second == base) {
      previous->second += added->second;
      ranges.erase(added);
    }
  }
}

void address_space::map(mapping entry) {
  const std::lock_guard lock(mutex_);
  const device_ptr base = entry.base;
  if (entry.memory != nullptr) entry.memory->bind(base, entry.bytes, entry.offset);
  mappings_[base] = std::move(entry);
}

bool address_space::unmap(device_ptr base, std::size_t bytes, std::vector<device_ptr>* bases) {
  std::vector<mapping> dropped;  // destroyed after the lock: unmapping views is slow
  const std::lock_guard lock(mutex_);
  if (const auto before = mapping_at(base); before != mappings_.end() && before->first != base) return false;
  const auto first = mappings_.lower_bound(base);
  auto last = first;
  for (; last != mappings_.end() && last->first < base + bytes; ++last)
    if (last->first + last->second.bytes > base + bytes) return false;
  if (first == last && bases == nullptr) return false;
  for (auto entry = first; entry != last; ++entry) {
    if (entry->second.memory != nullptr) entry->second.memory->unbind(entry->first, entry->second.bytes);
    if (bases != nullptr) bases->push_back(entry->first);
    dropped.push_back(std::move(entry->second));
  }
  mappings_.erase(first, last);
  generation_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

std::map<device_ptr, mapping>::iterator address_space::mapping_at(device_ptr address) {
  auto found = mappings_.upper_bound(address);
  if (found == mappings_.begin()) return mappings_.end();
  --found;
  return address - found->first < found->second.bytes ? found : mappings_.end();
}

bool address_space::is_mapped(device_ptr base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto next = mappings_.lower_bound(base);
  return mapping_at(base) != mappings_.end() || (next != mappings_.end() && next->first < base + bytes);
}

std::vector<mapping> address_space::mappings_over(device_ptr base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<mapping> found;
  if (base + bytes < base) return found;
  device_ptr cursor = base;
  for (auto entry = mapping_at(base); cursor < base + bytes; ++entry) {
    if (entry == mappings_.end() || (cursor != base && entry->first != cursor)) return {};
    found.push_back(entry->second);
    cursor = entry->first + entry->second.bytes;
  }
  return found;
}

bool address_space::set_access(device_ptr base, std::size_t bytes, unsigned device_bit, int access) {
  const std::lock_guard lock(mutex_);
  const auto first = mappings_.find(base);
  auto last = first;
  device_ptr cursor = base;
  while (last != mappings_.end() && last->first == cursor && cursor < base + bytes) cursor += (last++)->second.bytes;
  if (cursor != base + bytes) return false;
  for (auto entry = first; entry != last; ++entry) {
    mapping& m = entry->second;
    m.readable = (access & access_flags::read) != 0 ? m.readable | device_bit : m.readable & ~device_bit;
    m.writable = access == access_flags::read_write ? m.writable | device_bit : m.writable & ~device_bit;
  }
  generation_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

void address_space::add(const allocation_ref& entry) {
  const std::lock_guard lock(mutex_);
  entry->buffer_id = ++last_buffer_id_;
  allocations_[entry->base] = entry;
}

allocation_ref address_space::find_locked(device_ptr address) {
  auto found = allocations_.upper_bound(address);
  if (found == allocations_.begin()) return nullptr;
  --found;
  return address - found->first < found->second->bytes ? found->second : nullptr;
}

allocation_ref address_space::find(device_ptr address) {
  const std::lock_guard lock(mutex_);
  return find_locked(address);
}

allocation_ref address_space::find_base(device_ptr base) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(base);
  return found == allocations_.end() ? nullptr : found->second;
}

bool address_space::overlaps(device_ptr base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (find_locked(base) != nullptr) return true;
  const auto next = allocations_.lower_bound(base);
  return next != allocations_.end() && next->first - base < bytes;
}

allocation_ref address_space::remove(device_ptr base) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(base);
  if (found == allocations_.end()) return nullptr;
  auto entry = std::move(found->second);
  allocations_.erase(found);
  generation_.fetch_add(1, std::memory_order_acq_rel);
  return entry;
}

std::vector<allocation_ref> address_space::all_of_context(context_t context) {
  const std::lock_guard lock(mutex_);
  std::vector<allocation_ref> found;
  for (const auto& [base, entry] : allocations_)
    if (entry->context == context) found.push_back(entry);
  return found;
}

void address_space::add_reservation(device_ptr base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  reservations_[base] = bytes;
}

bool address_space::remove_reservation(device_ptr base, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = reservations_.find(base);
  if (found == reservations_.end() || found->second != bytes) return false;
  reservations_.erase(found);
  return true;
}

bool address_space::find_reservation(device_ptr address, reservation& out) {
  const std::lock_guard lock(mutex_);
  auto found = reservations_.upper_bound(address);
  if (found == reservations_.begin()) return false;
  --found;
  if (address - found->first >= found->second) return false;
  out = {found->first, found->second};
  return true;
}

result_t address_space::resolve(device_ptr address, std::size_t bytes, std::vector<piece>& out) {
  if (address == 0) return code::invalid_value;
  if (!is_device_address(address)) {
    out.push_back({reinterpret_cast<std::byte*>(address), bytes, nullptr});
    return code::success;
  }
  const std::lock_guard lock(mutex_);
  const auto owner = find_locked(address);
  if (owner == nullptr) return code::invalid_value;
  if (owner->kind != memory_kind::vmm && owner->bytes - (address - owner->base) < bytes) return code::invalid_value;
  std::vector<piece> pieces;
  for (device_ptr cursor = address; cursor < address + bytes;) {
    const auto entry = mapping_at(cursor);
    if (entry == mappings_.end() || entry->second.readable == 0) return code::invalid_value;
    const mapping& m = entry->second;
    if (m.memory == nullptr) return code::invalid_value;  // only kernels store to multicast addresses
    const std::size_t inside = cursor - m.base;
    const std::size_t inside_bytes = std::min<std::size_t>(m.bytes - inside, address + bytes - cursor);
    pieces.push_back({m.memory->view() + m.offset + inside, inside_bytes, m.memory});
    cursor += inside_bytes;
  }
  out.insert(out.end(), std::make_move_iterator(pieces.begin()), std::make_move_iterator(pieces.end()));
  return code::success;
}

bool address_space::reach_from_kernel(device_ptr address, std::size_t bytes, bool is_write, int device_ordinal,
                                      unsigned reachable, reach& out) {
  const std::lock_guard lock(mutex_);
  if (!is_device_address(address)) {
    const auto host = find_locked(address);
    if (host == nullptr || host->bytes - (address - host->base) < bytes) return false;
    out = {host->base, host->base + host->bytes, reinterpret_cast<std::byte*>(host->base), true, nullptr};
    return true;
  }
  const auto entry = mapping_at(address);
  if (entry == mappings_.end()) return false;
  const mapping& m = entry->second;
  if (m.memory == nullptr) return false;  // real GPUs leave open what ordinary accesses of multicast addresses do
  const unsigned bit = 1u << device_ordinal;
  if ((m.readable & bit) == 0 || (is_write && (m.writable & bit) == 0)) return false;
  if (m.needs_peer_access && (reachable >> m.memory->device_ordinal() & 1u) == 0) return false;
  if (m.bytes - (address - m.base) < bytes) return false;
  out = {m.base, m.base + m.bytes, m.memory->view() + m.offset, (m.writable & bit) != 0, m.memory};
  return true;
}

std::shared_ptr<multicast_team> address_space::team_from_kernel(device_ptr address, std::size_t bytes, int device_ordinal,
                                                                std::size_t& offset) {
  const std::lock_guard lock(mutex_);
  if (!is_device_address(address)) return nullptr;
  const auto entry = mapping_at(address);
  if (entry == mappings_.end()) return nullptr;
  const mapping& m = entry->second;
  if (m.team == nullptr || (m.writable & 1u << device_ordinal) == 0 || m.bytes - (address - m.base) < bytes) return nullptr;
  offset = address - m.base;
  return m.team;
}

}  // namespace pl::sim
