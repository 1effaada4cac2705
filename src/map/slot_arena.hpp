// SPDX-License-Identifier: Apache-2.0
// Objects that C code names by a raw pointer, which is checked: "is this value one of ours?" takes two comparisons.
//
// A fixed number of equal slots in one range of reserved, lazily committed memory that is never unmapped, so that
// reading the slot of a stale or foreign pointer never faults. Freed slots wait in a queue (kQuarantine long) before
// they are reused: a handle that is used after its release is then refused instead of naming another object. Slots are
// value-initialised once and never destroyed; T resets itself. Taking and releasing a slot allocates nothing, so a
// release cannot fail for lack of memory.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

#include "base/checked_math.hpp"

// LeakSanitizer searches the heap and globals for pointers, but not mapped ranges: without this call, what an open
// session owns counts as leaked. Exists only in programs built with it.
extern "C" __attribute__((weak)) void __lsan_register_root_region(const void* begin, std::size_t size_bytes);  // NOLINT

namespace pl {

template <class T, std::size_t kSlots, std::size_t kQuarantine>
class slot_arena {
 public:
  static_assert(is_power_of_two(sizeof(T)), "slots are found by masking");
  static constexpr std::size_t kBytes = kSlots * sizeof(T);

  slot_arena() {
    void* memory = mmap(nullptr, kBytes + kSlots * sizeof(std::uint32_t), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base_ = memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
    if (base_ != nullptr) waiting_ = reinterpret_cast<std::uint32_t*>(base_ + kBytes);
    if (base_ != nullptr && __lsan_register_root_region != nullptr) __lsan_register_root_region(base_, kBytes);
  }
  slot_arena(const slot_arena&) = delete;
  slot_arena& operator=(const slot_arena&) = delete;

  // Whether `value` is the address of a slot of this arena (live or not). Any value is allowed. Lock-free.
  bool owns(std::uintptr_t value) const noexcept {
    const std::uintptr_t offset = value - reinterpret_cast<std::uintptr_t>(base_);
    return base_ != nullptr && offset < kBytes && (offset & (sizeof(T) - 1)) == 0;
  }
  // Precondition: owns(value), and the slot was handed out before (the caller's state word tells: 0 = never used).
  static T* pointer(std::uintptr_t value) noexcept { return reinterpret_cast<T*>(value); }

  // Takes a slot for the caller; null if all are in use or memory is exhausted.
  T* take() {
    const std::lock_guard lock(mutex_);
    if (base_ == nullptr) return nullptr;
    if (waiting_count_ > kQuarantine || (used_ == kSlots && waiting_count_ != 0)) {
      const std::uint32_t index = waiting_[first_waiting_];
      first_waiting_ = (first_waiting_ + 1) % ring_;
      --waiting_count_;
      return reinterpret_cast<T*>(base_ + sizeof(T) * index);
    }
    if (used_ == kSlots) return nullptr;
    return new (base_ + sizeof(T) * used_++) T{};
  }

  void give_back(T* slot) noexcept {
    const std::lock_guard lock(mutex_);
    const std::size_t offset = reinterpret_cast<std::uintptr_t>(slot) - reinterpret_cast<std::uintptr_t>(base_);
    if (waiting_count_ == ring_) widen_ring();
    waiting_[(first_waiting_ + waiting_count_++) % ring_] = static_cast<std::uint32_t>(offset / sizeof(T));
  }

 private:
  static_assert(is_power_of_two(kSlots), "the ring of freed slots doubles up to their number");

  // A ring of all slots would cycle through all of its memory; this one covers only as many as were in use at once.
  void widen_ring() noexcept {
    std::copy_n(waiting_, first_waiting_, waiting_ + ring_);
    ring_ *= 2;
  }

  char* base_ = nullptr;
  std::mutex mutex_;
  std::size_t used_ = 0;
  std::uint32_t* waiting_ = nullptr;  // ring of freed slots' numbers behind the slots, with room for all of them
  std::size_t ring_ = kSlots < 1024 ? kSlots : 1024;
  std::size_t first_waiting_ = 0, waiting_count_ = 0;
};

}  // namespace pl
