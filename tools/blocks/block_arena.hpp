// SPDX-License-Identifier: Apache-2.0
// Memory of `peerlane blocks`: a region of the GPU and one of page-locked host memory, lists of scattered blocks between the
// two, and the check that a list moved every byte of its blocks and no other one.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "copy/block_transfer.hpp"
#include "tools/common/device_block.hpp"

namespace pl::tools {

// Blocks of one list. The arrays are its own, so it must not move while a transfer names them.
struct block_list {
  copy::direction way = copy::direction::to_host;
  std::uint64_t block_bytes = 0;
  std::uint64_t device_base = 0, host_base = 0;
  std::uint64_t slots = 0;  // of block_bytes each on both sides; the list uses some of them
  std::vector<std::int32_t> device_slots, host_slots;

  std::size_t count() const { return device_slots.size(); }
  std::uint64_t bytes() const { return block_bytes * count(); }
  bool to_host() const { return way == copy::direction::to_host; }
  std::uint64_t destination(std::size_t block) const { return to_host() ? host(block) : device(block); }
  std::uint64_t source(std::size_t block) const { return to_host() ? device(block) : host(block); }
  // In the planner's form. A view of this object.
  copy::block_transfer transfer() const;

 private:
  std::uint64_t device(std::size_t block) const {
    return device_base + static_cast<std::uint64_t>(device_slots[block]) * block_bytes;
  }
  std::uint64_t host(std::size_t block) const {
    return host_base + static_cast<std::uint64_t>(host_slots[block]) * block_bytes;
  }
};

class block_arena {
 public:
  // Room for every list of up to `list_bytes` in blocks of up to `block_bytes`. Throws if there is none.
  block_arena(const gpu_session& gpu, std::uint64_t list_bytes, std::uint64_t block_bytes, std::uint64_t seed);

  // Fills the source of this direction. Before the first list of it.
  void begin(copy::direction way);
  // `count` blocks at random places of both sides.
  block_list make_list(copy::direction way, std::uint64_t block_bytes, std::size_t count);
  // Has `run` move the list into blank memory and compares all of it. Throws on a difference.
  void verify(const block_list& list, const std::string& name, const std::function<void()>& run);

 private:
  static std::uint64_t slots_for(std::size_t count) { return count + count / 4 + 1; }  // some stay untouched
  const std::uint64_t seed_;
  const std::uint64_t bytes_;
  std::mt19937_64 random_;
  device_block device_;
  host_memory host_;
  std::vector<unsigned char> pattern_, seen_;
};

}  // namespace pl::tools
