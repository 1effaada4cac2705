// SPDX-License-Identifier: Apache-2.0
// What both_ways_bench measures: copies between host and device in both directions at once. Each kernel takes two pairs of
// addresses, of which the first goes to the device, `vectors` of 16 bytes a direction, and how often to copy them. The last
// warp of a direction to end leaves the time at ends[direction]; the first block leaves its start at ends[2].
#include "cuda/kernel_device.cuh"

using namespace pl::dev;

namespace {

struct course {
  std::uint64_t destination, source;
};

PL_DEVICE std::uint64_t thread_of_grid() { return std::uint64_t{block_x()} * block_dim_x() + thread_x(); }
PL_DEVICE std::uint64_t warps_of_grid() { return std::uint64_t{grid_dim_x()} * block_dim_x() / 32; }

PL_DEVICE void note_start(std::uint64_t ends) {
  if (thread_of_grid() == 0) store_relaxed<std::uint64_t>(ends + 16, global_timer_ns());
}
PL_DEVICE void note_end(std::uint64_t ends, unsigned direction) {
  if (thread_x() % 32 == 0) store_relaxed<std::uint64_t>(ends + 8 * direction, global_timer_ns());
}

// Warp `mine` of `warps` copies its part of the buffer, kInFlight vectors a thread under way.
template <int kInFlight>
PL_DEVICE void sweep(course way, std::uint64_t vectors, std::uint64_t mine, std::uint64_t warps) {
  const std::uint64_t step = 32 * warps;
  std::uint64_t index = 32 * mine + thread_x() % 32;
  for (; index + (kInFlight - 1) * step < vectors; index += kInFlight * step) {
    vec16 held[kInFlight];
    for (int i = 0; i < kInFlight; ++i) held[i] = load_stream_vec16(way.source + 16 * (index + i * step));
    for (int i = 0; i < kInFlight; ++i) store_stream_vec16(way.destination + 16 * (index + i * step), held[i]);
  }
  for (; index < vectors; index += step)
    store_stream_vec16(way.destination + 16 * index, load_stream_vec16(way.source + 16 * index));
}

template <int kInFlight>
PL_DEVICE void sweep_often(course way, std::uint64_t vectors, std::uint64_t passes, std::uint64_t mine,
                           std::uint64_t warps) {
  for (std::uint64_t pass = 0; pass < passes; ++pass) sweep<kInFlight>(way, vectors, mine, warps);
}

}  // namespace

// One vector a thread, again and again: a pass begins before others have ended theirs, with the same bytes. Every other warp
// goes the other way. The grid has two threads a vector.
PL_KERNEL void own_vectors(course in, course out, std::uint64_t vectors, std::uint64_t passes, std::uint64_t ends) {
  note_start(ends);
  const std::uint64_t warp = thread_of_grid() / 32;
  const auto direction = static_cast<unsigned>(warp % 2);
  const std::uint64_t index = warp / 2 * 32 + thread_x() % 32;
  const course way = direction == 0 ? in : out;
  if (index < vectors)
    for (std::uint64_t pass = 0; pass < passes; ++pass)
      store_stream_vec16(way.destination + 16 * index, load_stream_vec16(way.source + 16 * index));
  note_end(ends, direction);
}
PL_EXPORT_KERNEL(own_vectors)

// Whole buffers in each pass. Every other warp goes the other way.
#define PL_BY_WARPS(in_flight)                                                                            \
  PL_KERNEL void by_warps_##in_flight(course in, course out, std::uint64_t vectors, std::uint64_t passes, \
                                      std::uint64_t ends) {                                               \
    note_start(ends);                                                                                     \
    const std::uint64_t warp = thread_of_grid() / 32;                                                     \
    const auto direction = static_cast<unsigned>(warp % 2);                                               \
    sweep_often<in_flight>(direction == 0 ? in : out, vectors, passes, warp / 2, warps_of_grid() / 2);    \
    note_end(ends, direction);                                                                            \
  }                                                                                                       \
  PL_EXPORT_KERNEL(by_warps_##in_flight)
PL_BY_WARPS(1)
PL_BY_WARPS(4)
PL_BY_WARPS(8)

// The first `readers` blocks of a grid bring bytes to the device, the others take them away.
#define PL_BY_BLOCKS(in_flight)                                                                            \
  PL_KERNEL void by_blocks_##in_flight(course in, course out, std::uint64_t vectors, std::uint64_t passes, \
                                       std::uint64_t ends, std::uint64_t readers) {                        \
    note_start(ends);                                                                                      \
    const std::uint64_t warp = thread_of_grid() / 32, first = readers * block_dim_x() / 32;                \
    if (block_x() < readers) sweep_often<in_flight>(in, vectors, passes, warp, first);                     \
    else sweep_often<in_flight>(out, vectors, passes, warp - first, warps_of_grid() - first);              \
    note_end(ends, block_x() < readers ? 0 : 1);                                                           \
  }                                                                                                        \
  PL_EXPORT_KERNEL(by_blocks_##in_flight)
PL_BY_BLOCKS(1)
PL_BY_BLOCKS(4)
PL_BY_BLOCKS(8)
