// SPDX-License-Identifier: Apache-2.0
// Scattered blocks copied by multiprocessors: the way of the kernels that inference engines use, for `peerlane blocks`.
#include "cuda/kernel_device.cuh"

using namespace pl::dev;

namespace {

constexpr unsigned kLanes = 32;
// Loads in flight for each thread: a warp then has 4 KiB in flight, and short lists of long blocks still have work for
// all.
constexpr unsigned kInFlight = 8;
constexpr std::uint64_t kPartBytes = kLanes * kInFlight * 16;

}  // namespace

// `list`: for each of `count` blocks the destination's and the source's address. `block_bytes`: a multiple of 16; so are the
// addresses. Each warp takes a part of a block at a time.
PL_KERNEL void gather_blocks(std::uint64_t list, std::uint64_t count, std::uint64_t block_bytes) {
  const std::uint64_t thread = std::uint64_t{block_x()} * block_dim_x() + thread_x();
  const std::uint64_t warps = std::uint64_t{grid_dim_x()} * block_dim_x() / kLanes;
  const std::uint64_t lane = thread % kLanes;
  const std::uint64_t parts_of_block = (block_bytes + kPartBytes - 1) / kPartBytes;
  for (std::uint64_t part = thread / kLanes; part < count * parts_of_block; part += warps) {
    const vec16 addresses = load_stream_vec16(list + 16 * (part / parts_of_block));  // low: destination, high: source
    const std::uint64_t begin = part % parts_of_block * kPartBytes;
    const std::uint64_t left = (block_bytes - begin) / 16;
    vec16 in_flight[kInFlight];
    for (unsigned i = 0; i < kInFlight; ++i)
      if (const std::uint64_t index = lane + i * kLanes; index < left)
        in_flight[i] = load_stream_vec16(addresses.high + begin + 16 * index);
    for (unsigned i = 0; i < kInFlight; ++i)
      if (const std::uint64_t index = lane + i * kLanes; index < left)
        store_stream_vec16(addresses.low + begin + 16 * index, in_flight[i]);
  }
}

PL_EXPORT_KERNEL(gather_blocks)
