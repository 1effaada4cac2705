// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/public_copy.hpp"

#include <algorithm>
#include <cstring>

#include "compat/mpi/device_memory.hpp"

namespace pl::mpi {
namespace {

constexpr std::size_t kChunk = 1u << 20;
constexpr std::size_t kBlock = 64;  // equal blocks are passed over by one comparison

// Calls `found(begin, end)` for each run of bytes in which the two differ.
template <class Found>
void for_each_difference(const std::byte* one, const std::byte* other, std::size_t bytes, Found found) {
  std::size_t i = 0;
  while (i < bytes) {
    const std::size_t block = std::min(kBlock, bytes - i);
    if (i % kBlock == 0 && std::memcmp(one + i, other + i, block) == 0) {
      i += block;
      continue;
    }
    if (one[i] == other[i]) {
      ++i;
      continue;
    }
    const std::size_t begin = i;
    while (i < bytes && one[i] != other[i]) ++i;
    found(begin, i);
  }
}

}  // namespace

result<std::unique_ptr<public_copy>> public_copy::make(std::uint64_t device, std::size_t bytes) {
  if (!is_within_allocation(device, bytes)) return failure{EINVAL, "the window leaves its allocation of device memory"};
  std::unique_ptr<public_copy> made(new public_copy(device, bytes));
  auto memory = take_staging(device, bytes, false);
  if (!memory) return memory.error();
  auto chunk = take_staging(device, std::min(bytes, kChunk), false);
  if (!chunk) return chunk.error();
  made->public_ = std::move(*memory);
  made->chunk_ = std::move(*chunk);
  const copy::transfer whole{copy::direction::to_host, copy::address_of(made->data()), device, bytes};
  if (auto done = copy_all({&whole, 1}, nullptr); !done) return done.error();
  std::memcpy(made->met_.data(), made->data(), bytes);
  return made;
}

status public_copy::publish() {
  for (std::size_t begin = 0; begin < bytes_; begin += kChunk) {
    const std::size_t bytes = std::min(kChunk, bytes_ - begin);
    const copy::transfer chunk{copy::direction::to_host, copy::address_of(chunk_.data()), device_ + begin, bytes};
    if (auto done = copy_all({&chunk, 1}, nullptr); !done) return done;
    for_each_difference(chunk_.data(), met_.data() + begin, bytes, [&](std::size_t first, std::size_t last) {
      std::memcpy(data() + begin + first, chunk_.data() + first, last - first);
      std::memcpy(met_.data() + begin + first, chunk_.data() + first, last - first);
    });
  }
  return {};
}

status public_copy::adopt() {
  for (std::size_t begin = 0; begin < bytes_; begin += kChunk)
    if (auto done = adopt_chunk(begin, std::min(kChunk, bytes_ - begin)); !done) return done;
  return {};
}

status public_copy::adopt_chunk(std::size_t begin, std::size_t bytes) {
  // MPI may write on: what is compared is what is copied.
  std::memcpy(chunk_.data(), data() + begin, bytes);
  std::vector<copy::transfer> changes;
  for_each_difference(chunk_.data(), met_.data() + begin, bytes, [&](std::size_t first, std::size_t last) {
    const auto place = device_ + begin + first;
    // A number of which one byte stayed is one copy. Between two meetings only one side may change a window's memory.
    constexpr std::size_t kGap = 16;
    if (!changes.empty() && changes.back().dst + changes.back().row_bytes + kGap >= place)
      changes.back().row_bytes = place + (last - first) - changes.back().dst;
    else changes.push_back({copy::direction::to_device, place, copy::address_of(chunk_.data() + first), last - first});
  });
  if (changes.empty()) return {};
  if (auto done = copy_all(changes, nullptr); !done) return done;
  std::memcpy(met_.data() + begin, chunk_.data(), bytes);
  return {};
}

}  // namespace pl::mpi
