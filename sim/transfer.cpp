// SPDX-License-Identifier: Apache-2.0
#include "sim/transfer.hpp"

#include <algorithm>
#include <cstring>

namespace pl::sim {
namespace {

struct run {
  std::byte* destination;
  const std::byte* source;
  std::size_t bytes;
  const object_ref* keep;  // of the destination, the operand's own
};

constexpr std::size_t kShuffledChunkBytes = 32u << 10;

template <class T>
bool move_word(const run& r) {
  const auto both = reinterpret_cast<std::uintptr_t>(r.destination) | reinterpret_cast<std::uintptr_t>(r.source);
  if (r.bytes != sizeof(T) || both % sizeof(T) != 0) return false;
  const T value = __atomic_load_n(reinterpret_cast<const T*>(r.source), __ATOMIC_ACQUIRE);
  __atomic_store_n(reinterpret_cast<T*>(r.destination), value, __ATOMIC_RELEASE);
  return true;
}

void move_run(const run& r) {
  if (move_word<std::uint64_t>(r) || move_word<std::uint32_t>(r) || move_word<std::uint16_t>(r) ||
      move_word<std::uint8_t>(r))
    return;
  std::memmove(r.destination, r.source, r.bytes);
}

std::vector<run> pair_up(const std::vector<piece>& destination, const std::vector<piece>& source) {
  std::vector<run> runs;
  std::size_t t = 0;
  std::size_t f = 0;
  std::size_t t_done = 0;
  std::size_t f_done = 0;
  while (t < destination.size() && f < source.size()) {
    const std::size_t bytes = std::min(destination[t].bytes - t_done, source[f].bytes - f_done);
    if (bytes != 0) runs.push_back({destination[t].data + t_done, source[f].data + f_done, bytes, &destination[t].keep});
    t_done += bytes;
    f_done += bytes;
    if (t_done == destination[t].bytes) ++t, t_done = 0;
    if (f_done == source[f].bytes) ++f, f_done = 0;
  }
  return runs;
}

// Any order of the chunks of one copy is legal as long as source and destination do not overlap.
void move_shuffled(const run& r) {
  const bool overlap = r.destination < r.source + r.bytes && r.source < r.destination + r.bytes;
  if (overlap || r.bytes <= kShuffledChunkBytes) return move_run(r);
  std::vector<run> chunks;
  for (std::size_t offset = 0; offset < r.bytes; offset += kShuffledChunkBytes)
    chunks.push_back({r.destination + offset, r.source + offset, std::min(kShuffledChunkBytes, r.bytes - offset), r.keep});
  for (std::size_t i = chunks.size() - 1; i > 0; --i) std::swap(chunks[i], chunks[random_below(i + 1)]);
  for (const auto& chunk : chunks) {
    move_run(chunk);
    if (random_below(8) == 0) random_delay();
  }
}

// Aligned words at once, as they may be changing.
std::vector<std::byte> load_words(const std::byte* source, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  if (reinterpret_cast<std::uintptr_t>(source) % 8 != 0 || bytes % 8 != 0) {
    std::memcpy(out.data(), source, bytes);
    return out;
  }
  for (std::size_t offset = 0; offset < bytes; offset += 8) {
    const auto word = __atomic_load_n(reinterpret_cast<const std::uint64_t*>(source + offset), __ATOMIC_ACQUIRE);
    std::memcpy(out.data() + offset, &word, 8);
  }
  return out;
}

// About half of the copy is held back, in parts that have no order among themselves.
void move_delayed(store_buffer& writer, const run& r) {
  constexpr std::size_t kParts = 8;
  const std::size_t part = std::clamp<std::size_t>(round_up(r.bytes / kParts, 8), 8, kPageBytes);
  for (std::size_t offset = 0; offset < r.bytes; offset += part) {
    const std::size_t bytes = std::min(part, r.bytes - offset);
    const auto read = load_words(r.source + offset, bytes);
    if (random_below(2) == 0) writer.hold(r.destination + offset, read.data(), bytes, *r.keep);
    else store_words(r.destination + offset, read.data(), bytes);
  }
}

}  // namespace

void move_bytes(const std::vector<piece>& destination, const std::vector<piece>& source) {
  order_stores();
  const auto writer = stores_are_delayed() ? current_writer() : nullptr;
  if (writer != nullptr)
    for (const piece& p : source)
      if (is_remote(p.keep, writer->device())) observe(p.data, p.bytes, writer->device());
  for (const run& r : pair_up(destination, source)) {
    if (writer != nullptr && is_remote(*r.keep, writer->device())) {
      move_delayed(*writer, r);
      continue;
    }
    if (seed() != 0) move_shuffled(r);
    else move_run(r);
  }
}

void fill_bytes(const std::vector<piece>& destination, std::uint32_t pattern, std::size_t pattern_bytes) {
  order_stores();  // a fill itself is not held back
  std::byte bytes[4];
  std::memcpy(bytes, &pattern, sizeof bytes);
  for (const piece& p : destination) {
    if (pattern_bytes == 1) {
      std::memset(p.data, static_cast<int>(pattern & 0xff), p.bytes);
      continue;
    }
    // Pieces start and end on pages or at the operand's own (aligned) ends, so no element is split.
    for (std::size_t offset = 0; offset + pattern_bytes <= p.bytes; offset += pattern_bytes)
      std::memcpy(p.data + offset, bytes, pattern_bytes);
  }
}

}  // namespace pl::sim
