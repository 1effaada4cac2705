// SPDX-License-Identifier: Apache-2.0
// What operation number n of a key does, and the bytes that it puts: known without being told, different for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace pl::store {

inline bool is_erase(std::uint64_t number) { return number % 5 == 0; }

inline std::vector<std::byte> value_of(std::size_t pool, std::size_t thread, std::size_t key, std::uint64_t number) {
  std::minstd_rand random(1 + static_cast<unsigned>(((pool * 64 + thread) * 64 + key) * 1'000'003 + number));
  // Nothing, small ones in the index, large ones in extents, some of several blocks.
  const std::size_t sizes[] = {0, 100, 3000, 4096, 5000, 20'000, 150'000};
  std::vector<std::byte> made(sizes[random() % 7] + (number % 2 == 0 ? 0 : random() % 50));
  for (std::size_t i = 0; i < made.size(); i += 4) {
    const auto word = static_cast<std::uint32_t>(random());
    std::memcpy(made.data() + i, &word, std::min<std::size_t>(4, made.size() - i));
  }
  if (made.size() >= 8) std::memcpy(made.data(), &number, 8);
  return made;
}

}  // namespace pl::store
