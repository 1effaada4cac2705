// SPDX-License-Identifier: Apache-2.0
// The kind and the bytes of a key's operation number n: computed, and different for each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "arch/crc32c.hpp"
#include "store/engine/engine.hpp"

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

// By a grant that is filled step by step, each told of (engine::arrived); every third time an earlier one is given up on its
// way. The errno.
inline int put_as_it_comes(engine& store, pool_id pool, std::string_view key, std::span<const std::byte> value,
                           std::uint64_t number, const put_options& settings = {}) {
  constexpr std::size_t kSteps = 3;
  const session_id session = store.open_session();
  int code = 0;
  for (std::uint64_t turn = number % 3 == 0 ? 0 : 1; turn < 2 && code == 0; ++turn) {
    auto given = store.begin_put(session, pool, key, value.size());
    if (!given) {
      code = given.code();
      break;
    }
    std::size_t step = 0, done = 0;
    for (; step < kSteps && code == 0; ++step) {
      const std::size_t bound = value.size() * (step + 1) / kSteps;
      std::uint64_t offset = 0;  // of the segment in the value
      for (const segment& one : given->segments) {
        const std::size_t first = std::max<std::size_t>(done, offset),
                          end = std::min<std::size_t>(bound, offset + one.size_bytes);
        if (first < end)
          std::memcpy(store.arena().base + one.offset_bytes + (first - offset), value.data() + first, end - first);
        offset += one.size_bytes;
      }
      done = bound;
      if (step + 1 < kSteps || number % 2 == 0) code = store.arrived(session, given->id, done, settings.level).code();
      if (turn == 0 && step == 1) break;
    }
    if (code != 0) break;
    commit_options commit;
    commit.put = settings;
    commit.take_crc = number % 4 != 1;
    if (commit.take_crc) commit.crc32c = arch::crc32c(value.data(), value.size());
    code = turn == 0 ? store.abort(session, given->id).code() : store.commit(session, given->id, commit).code();
  }
  store.close_session(session);
  return code;
}

}  // namespace pl::store
