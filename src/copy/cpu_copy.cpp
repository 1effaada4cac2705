// SPDX-License-Identifier: Apache-2.0
#include "copy/cpu_copy.hpp"

#include <algorithm>
#include <cstring>

#include "arch/copy_dispatch.hpp"

namespace pl::copy {
namespace {

constexpr std::uintptr_t kLine = 64;
// Smaller parts do not pay for the claim: 32 KiB by two threads 2.3 us, 40000 B 1.8.
constexpr std::size_t kSmallestPart = 8192;
constexpr std::size_t kLargestPart = 64u << 10;  // bounds how long the caller waits for the last helper: about 10 us
constexpr std::size_t kPartsForEachThread = 4;   // so that a late or slow helper leaves its share to the others

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// Equal parts on a grid of cache lines that begins at the line of the first byte. No line belongs to two parts: a line
// that two threads write in halves would cross the bus twice, and not as one transaction either.
class line_grid {
 public:
  line_grid(const void* first, std::size_t bytes, unsigned width)
      : lead_(reinterpret_cast<std::uintptr_t>(first) % kLine),
        bytes_(bytes),
        part_bytes_(
            std::clamp(round_up(bytes / (width * kPartsForEachThread), kSmallestPart), kSmallestPart, kLargestPart)) {}

  std::size_t parts() const { return (lead_ + bytes_ + part_bytes_ - 1) / part_bytes_; }
  std::size_t begin(std::size_t part) const { return part == 0 ? 0 : part * part_bytes_ - lead_; }
  std::size_t end(std::size_t part) const { return std::min(bytes_, (part + 1) * part_bytes_ - lead_); }

 private:
  std::size_t lead_;  // bytes of the first line before the first byte
  std::size_t bytes_;
  std::size_t part_bytes_;
};

// Threads that this copy can use, including the caller. 1 means that it calls the routine directly.
unsigned useful_width(const worker_pool& pool, unsigned width, std::size_t bytes) {
  return bytes <= kSmallestPart ? 1 : std::min(width, pool.helpers() + 1);
}

// Calls copy(offset, bytes) for the whole, or for each part.
template <class Copy>
void for_each_part(worker_pool& pool, unsigned wanted_width, const void* first, std::size_t bytes, const Copy& copy) {
  const unsigned width = useful_width(pool, wanted_width, bytes);
  if (width <= 1) return copy(std::size_t{0}, bytes);
  const line_grid grid(first, bytes, width);
  pool.run(width, grid.parts(), [&](std::size_t part) { copy(grid.begin(part), grid.end(part) - grid.begin(part)); });
}

// The same for stores to a mapping. Each thread fences once, after its last part: a fence after each part would wait
// for the write-combining buffers to drain, 0.1 us and more each time. run() orders the caller after all fences.
template <class Store>
void store_each_part(worker_pool& pool, unsigned wanted_width, arch::mapping_type type, const void* first, std::size_t bytes,
                     const Store& store) {
  const unsigned width = useful_width(pool, wanted_width, bytes);
  if (width <= 1) {
    store(std::size_t{0}, bytes);
    return arch::publish_to_device(type);
  }
  struct {
    const line_grid grid;
    const Store& store;
    const arch::mapping_type type;
    void operator()(std::size_t part) const { store(grid.begin(part), grid.end(part) - grid.begin(part)); }
    void finish() const { arch::publish_to_device(type); }
  } const body{line_grid(first, bytes, width), store, type};
  pool.run_and_finish(width, body.grid.parts(), body);
}

}  // namespace

void write_parallel(worker_pool& pool, unsigned width, arch::mapping_type type, void* device, const void* host,
                    std::size_t bytes) {
  store_each_part(pool, width, type, device, bytes, [=](std::size_t offset, std::size_t count) {
    arch::copy_to_unfenced(type, static_cast<char*>(device) + offset, static_cast<const char*>(host) + offset, count);
  });
}

void read_parallel(worker_pool& pool, unsigned width, arch::mapping_type type, void* host, const void* device,
                   std::size_t bytes) {
  if (useful_width(pool, width, bytes) <= 1) return arch::copy_from(type, host, device, bytes);
  // What this thread stored may still be in its write-combining buffers, where helpers do not see it.
  arch::order_before_reads(type);
  for_each_part(pool, width, device, bytes, [=](std::size_t offset, std::size_t count) {
    arch::copy_from(type, static_cast<char*>(host) + offset, static_cast<const char*>(device) + offset, count);
  });
  // The caller learns from a load that the helpers are done, and its own later streaming loads could overtake that
  // load.
  arch::order_after_reads(type);
}

void fill_parallel(worker_pool& pool, unsigned width, arch::mapping_type type, void* device, std::uint64_t pattern8,
                   std::size_t bytes) {
  store_each_part(pool, width, type, device, bytes, [=](std::size_t offset, std::size_t count) {
    arch::fill_to_unfenced(type, static_cast<char*>(device) + offset, pattern8, count);
  });
}

void copy_host_parallel(worker_pool& pool, unsigned width, void* dst, const void* src, std::size_t bytes) {
  if (bytes == 0) return;  // null pointers are allowed then
  for_each_part(pool, width, dst, bytes, [=](std::size_t offset, std::size_t count) {
    std::memcpy(static_cast<char*>(dst) + offset, static_cast<const char*>(src) + offset, count);
  });
}

}  // namespace pl::copy
