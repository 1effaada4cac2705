// SPDX-License-Identifier: Apache-2.0
#include "sim/heap.hpp"

namespace pl::sim {

device_ptr map_new_object(int device_ordinal, std::size_t bytes, result_t& reason) {
  auto& space = address_space::instance();
  auto memory = object::create(*find_device(device_ordinal), bytes, reason);
  if (memory == nullptr) return 0;
  const device_ptr base = space.take_range(device_ordinal, bytes, kGpuPageBytes, 0);
  if (base == 0) return reason = code::out_of_memory, 0;
  mapping entry;
  entry.base = base;
  entry.bytes = bytes;
  entry.memory = std::move(memory);
  space.map(std::move(entry));
  return base;
}

void unmap_object(device_ptr base, std::size_t bytes) {
  auto& space = address_space::instance();
  space.unmap(base, bytes);
  space.give_range(base, bytes);
}

result_t heap::allocate(std::size_t bytes, device_ptr& out) {
  const std::size_t wanted = round_up(bytes, kSmallStep);
  const std::lock_guard lock(mutex_);
  for (int round = 0; round < 2; ++round) {
    for (auto& [base, c] : chunks_) {
      for (auto hole = c.holes.begin(); hole != c.holes.end(); ++hole) {
        if (hole->second < wanted) continue;
        out = hole->first;
        const std::size_t left = hole->second - wanted;
        c.holes.erase(hole);
        if (left != 0) c.holes[out + wanted] = left;
        return code::success;
      }
    }
    const std::size_t chunk_bytes = round_up(wanted, chunk_bytes_);
    result_t reason = code::success;
    const device_ptr base = map_new_object(device_ordinal_, chunk_bytes, reason);
    if (base == 0) return reason;
    chunks_[base] = {chunk_bytes, {{base, chunk_bytes}}};
    reserved_bytes_ += chunk_bytes;
  }
  return code::out_of_memory;
}

void heap::free(device_ptr pointer, std::size_t bytes, std::size_t keep_bytes) {
  const std::lock_guard lock(mutex_);
  auto& c = std::prev(chunks_.upper_bound(pointer))->second;
  auto added = c.holes.emplace(pointer, round_up(bytes, kSmallStep)).first;
  if (const auto next = std::next(added); next != c.holes.end() && added->first + added->second == next->first) {
    added->second += next->second;
    c.holes.erase(next);
  }
  if (added != c.holes.begin()) {
    const auto previous = std::prev(added);
    if (previous->first + previous->second == added->first) {
      previous->second += added->second;
      c.holes.erase(added);
    }
  }
  drop_empty_locked(keep_bytes);
}

void heap::trim(std::size_t keep_bytes) {
  const std::lock_guard lock(mutex_);
  drop_empty_locked(keep_bytes);
}

std::size_t heap::reserved_bytes() {
  const std::lock_guard lock(mutex_);
  return reserved_bytes_;
}

void heap::drop_empty_locked(std::size_t keep_bytes) {
  for (auto entry = chunks_.begin(); entry != chunks_.end() && reserved_bytes_ > keep_bytes;) {
    const auto& [base, c] = *entry;
    if (c.holes.size() != 1 || c.holes.begin()->second != c.bytes) {
      ++entry;
      continue;
    }
    unmap_object(base, c.bytes);
    reserved_bytes_ -= c.bytes;
    entry = chunks_.erase(entry);
  }
}

}  // namespace pl::sim
