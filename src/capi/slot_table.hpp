// SPDX-License-Identifier: Apache-2.0
// Objects behind numbers, checked on use: any number may be given. For objects that are created with every message:
// finding one takes no lock; creating and ending one takes a short one.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace pl {

// Object is movable, and empty when default-constructed. Numbers are never 0, and an ended one is not reused before
// 2^31 others in its place. Consecutive tables in one place (an owner is closed, and another is opened at its address)
// give out different numbers, so that the old ones stay dead.
template <class Object>
class slot_table {
 public:
  // Returns 0 if 4 million are in use.
  std::uint64_t add(Object&& object) {
    const std::uint32_t index = take_place();
    if (index == kNone) return 0;
    slot& entry = *place(index);
    entry.object = std::move(object);
    const std::uint32_t generation = entry.generation.load(std::memory_order_relaxed) + 1;  // odd: live
    entry.generation.store(generation, std::memory_order_release);
    return number_of(generation, index);
  }
  // Null if it is not live. Valid until it is ended, which must not happen while it is used.
  Object* find(std::uint64_t number) noexcept {
    slot* const entry = live(number);
    return entry != nullptr ? &entry->object : nullptr;
  }
  // Takes the object out; an empty one if the number is not live.
  Object take(std::uint64_t number) {
    slot* const entry = live(number);
    auto generation = generation_of(number);
    if (entry == nullptr ||
        !entry->generation.compare_exchange_strong(generation, generation + 1, std::memory_order_acq_rel))
      return {};
    Object out = std::move(entry->object);
    entry->object = Object();
    const std::lock_guard lock(mutex_);
    entry->next_free = std::exchange(free_, static_cast<std::uint32_t>(number));
    return out;
  }
  // Ends all. Not concurrently with other calls.
  void clear() {
    for (std::uint32_t index = 0; index < made_; ++index) {
      slot& entry = *place(index);
      const std::uint32_t generation = entry.generation.load(std::memory_order_relaxed);
      if (generation % 2 != 0) take(number_of(generation, index));
    }
  }

 private:
  struct slot {
    Object object{};
    std::atomic<std::uint32_t> generation{0};
    std::uint32_t next_free = kNone;
  };
  static constexpr std::uint32_t kNone = ~0u;
  static constexpr std::uint32_t kFirst = 64;  // slots of the first block; each further one has twice as many
  static constexpr unsigned kBlocks = 16;

  // Even, so that live numbers stay odd; the multiplier separates consecutive tables.
  static std::uint32_t next_salt() noexcept {
    static std::atomic<std::uint32_t> tables{0};
    return (tables.fetch_add(1, std::memory_order_relaxed) * 2'654'435'761u) << 1;
  }
  std::uint64_t number_of(std::uint32_t generation, std::uint32_t index) const noexcept {
    return std::uint64_t{generation ^ salt_} << 32 | index;
  }
  std::uint32_t generation_of(std::uint64_t number) const noexcept {
    return static_cast<std::uint32_t>(number >> 32) ^ salt_;
  }

  static unsigned block_of(std::uint32_t index) noexcept {
    return static_cast<unsigned>(std::bit_width(index / kFirst + 1)) - 1;
  }
  static std::uint32_t begin_of(unsigned block) noexcept { return kFirst * ((1u << block) - 1); }
  slot* place(std::uint32_t index) const noexcept {
    const unsigned block = block_of(index);
    if (block >= kBlocks) return nullptr;
    slot* const slots = blocks_[block].load(std::memory_order_acquire);
    return slots != nullptr ? slots + (index - begin_of(block)) : nullptr;
  }
  slot* live(std::uint64_t number) const noexcept {
    slot* const entry = place(static_cast<std::uint32_t>(number));
    const auto generation = generation_of(number);
    if (entry == nullptr || generation % 2 == 0 || entry->generation.load(std::memory_order_acquire) != generation)
      return nullptr;
    return entry;
  }
  std::uint32_t take_place() {
    const std::lock_guard lock(mutex_);
    if (free_ != kNone) {
      const std::uint32_t taken = free_;
      free_ = place(taken)->next_free;
      return taken;
    }
    const unsigned block = block_of(made_);
    if (block >= kBlocks) return kNone;
    if (blocks_[block].load(std::memory_order_relaxed) == nullptr) {
      owned_[block] = std::make_unique<slot[]>(std::size_t{kFirst} << block);
      blocks_[block].store(owned_[block].get(), std::memory_order_release);
    }
    return made_++;
  }

  const std::uint32_t salt_ = next_salt();
  std::mutex mutex_;
  std::array<std::atomic<slot*>, kBlocks> blocks_{};
  std::array<std::unique_ptr<slot[]>, kBlocks> owned_;
  std::uint32_t made_ = 0;
  std::uint32_t free_ = kNone;
};

}  // namespace pl
