// SPDX-License-Identifier: Apache-2.0
#include "tools/blocks/block_arena.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <numeric>

#include "base/text.hpp"
#include "tools/copy/copy_arena.hpp"

namespace pl::tools {

copy::block_transfer block_list::transfer() const {
  const copy::paged_memory on_device{
      {&device_base, 1}, slots * block_bytes, block_bytes, copy::block_indices(device_slots.data())};
  const copy::paged_memory on_host{
      {&host_base, 1}, slots * block_bytes, block_bytes, copy::block_indices(host_slots.data())};
  return {way, to_host() ? on_host : on_device, to_host() ? on_device : on_host, block_bytes, count()};
}

block_arena::block_arena(const gpu_session& gpu, std::uint64_t list_bytes, std::uint64_t block_bytes, std::uint64_t seed)
    : seed_(seed),
      bytes_(list_bytes + list_bytes / 4 + block_bytes),
      random_(seed),
      device_(gpu, gpu.ordinal(), bytes_),
      host_(gpu, bytes_),
      pattern_(bytes_),
      seen_(bytes_) {
  random_bytes(seed).fill(pattern_.data(), bytes_);
}

void block_arena::begin(copy::direction way) {
  if (way == copy::direction::to_host) device_.write(0, pattern_.data(), bytes_);
  else std::memcpy(host_.data(), pattern_.data(), bytes_);
}

block_list block_arena::make_list(copy::direction way, std::uint64_t block_bytes, std::size_t count) {
  block_list list;
  list.way = way;
  list.block_bytes = block_bytes;
  list.device_base = device_.get();
  list.host_base = copy::address_of(host_.data());
  list.slots = slots_for(count);
  for (auto* const slots : {&list.device_slots, &list.host_slots}) {
    slots->resize(list.slots);
    std::iota(slots->begin(), slots->end(), 0);
    std::shuffle(slots->begin(), slots->end(), random_);
    slots->resize(count);
  }
  return list;
}

void block_arena::verify(const block_list& list, const std::string& name, const std::function<void()>& run) {
  const std::uint64_t size_bytes = list.slots * list.block_bytes;
  const auto blank = static_cast<unsigned char>(random_());
  if (list.to_host()) std::memset(host_.data(), blank, size_bytes);
  else device_.set(0, blank, size_bytes);
  run();
  if (!list.to_host()) device_.read(0, seen_.data(), size_bytes);
  const unsigned char* const seen = list.to_host() ? host_.bytes() : seen_.data();
  const auto& written = list.to_host() ? list.host_slots : list.device_slots;
  const auto& read = list.to_host() ? list.device_slots : list.host_slots;
  const std::vector<unsigned char> untouched(list.block_bytes, blank);
  std::vector<const unsigned char*> expected(list.slots, untouched.data());
  for (std::size_t i = 0; i < list.count(); ++i)
    expected[static_cast<std::size_t>(written[i])] =
        pattern_.data() + static_cast<std::uint64_t>(read[i]) * list.block_bytes;
  for (std::uint64_t slot = 0; slot < list.slots; ++slot) {
    const unsigned char* const block = seen + slot * list.block_bytes;
    if (std::memcmp(block, expected[slot], list.block_bytes) == 0) continue;
    const auto differs = std::mismatch(block, block + list.block_bytes, expected[slot]);
    throw tool_failure(format("%s, %zu blocks of %s: byte %td of slot %" PRIu64
                              " is 0x%02x instead of 0x%02x (--seed %" PRIu64 ")",
                              name.c_str(), list.count(), format_size(list.block_bytes).c_str(), differs.first - block, slot,
                              *differs.first, *differs.second, seed_));
  }
}

}  // namespace pl::tools
