// SPDX-License-Identifier: Apache-2.0
// The cost of each copy method by size, and the resulting decision.
//
// Curves are measured points (bytes, nanoseconds), interpolated linearly and continued at the last slope. The decision
// for a size is the cheapest curve there. All decisions are made beforehand, so that the lookup of a copy is one load
// from a table, which has cells for four round sizes an octave (4, 5, 6 and 7 times a power of two), which people use
// and at which methods begin and end, and for the sizes between two of them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "copy/transfer.hpp"

namespace pl::copy {

enum class method : std::uint8_t {
  cpu_store,           // stores through the mapping, by `width` threads
  cpu_load,            // loads through the mapping, by `width` threads
  cpu_relay,           // loads from one mapping, stores to another: device to device
  engine_low_latency,  // GPU engine, data lines (one worker)
  engine_copy,         // GPU engine, `width` workers, host memory pinned
  engine_bounce,       // GPU engine to pinned staging memory, CPU from there; `width` workers
  copy_engine,         // DMA by CUDA, completion by a polled word
  bounce,              // DMA by CUDA through a ring of pinned chunks, `width` CPU threads
  registered,          // DMA by CUDA, with the application's pages registered for this copy
  dma_channel,         // a DMA channel of our own, host memory pinned
  dma_bounce,          // a DMA channel to pinned staging memory, CPU from there
  dma_ring,            // a DMA channel and a ring of pinned chunks, `width` CPU threads
};
constexpr std::size_t kMethods = 12;
const char* name_of(method kind);

// What is on the other side of the device memory.
enum class other_side : std::uint8_t { pinned, pageable, same_gpu, peer_gpu };
constexpr std::size_t kSides = 4;
const char* name_of(other_side side);
const char* name_of(direction way);

struct choice {
  method kind = method::copy_engine;
  std::uint8_t width = 1;
  bool operator==(const choice&) const = default;
};
// What can move data on the GPU without a CUDA call right now: nothing, the copy kernel while it is resident, DMA
// channels, or both.
enum class executor : std::uint8_t { none, kernel, channel, both };
constexpr std::size_t kExecutors = 4;
const char* name_of(executor kind);
// What a method needs; none if it always works.
inline executor needed_executor(method kind) {
  if (kind == method::engine_low_latency || kind == method::engine_copy || kind == method::engine_bounce)
    return executor::kernel;
  const bool is_by_channel = kind == method::dma_channel || kind == method::dma_bounce || kind == method::dma_ring;
  return is_by_channel ? executor::channel : executor::none;
}
inline bool is_available(method kind, executor present) {
  const executor needed = needed_executor(kind);
  return needed == executor::none || needed == present || present == executor::both;
}
inline bool is_by_cpu(method kind) {
  return kind == method::cpu_store || kind == method::cpu_load || kind == method::cpu_relay;
}
std::string to_text(const choice& option);             // "cpu_store x4"
result<choice> parse_choice(const std::string& text);  // "cpu_store x4", or "cpu_store"; EINVAL lists the methods

struct cost_point {
  std::uint64_t bytes;
  double ns;
};

struct cost_curve {
  direction way;
  other_side side;
  choice option;
  std::vector<cost_point> points;  // ascending by bytes; at least one

  double cost_at(std::uint64_t bytes) const;
};

// All methods that exist for a direction and side: those that a calibration measures.
std::vector<choice> candidates(direction way, other_side side);
// The sizes that a method supports.
struct size_limits {
  std::uint64_t least = 1;
  std::uint64_t most = UINT64_MAX;
};
// Round sizes, as defined by cost_table's cells.
size_limits limits_of(direction way, const choice& option);

// Factor on a cost when methods are compared. Once the bus is full, several thread counts are equally fast, and four is
// the robust choice: with two threads each must start in time, with eight one may find its CPU busy.
inline double caution(const choice& option) {
  const bool is_by_threads = needed_executor(option.kind) == executor::none || option.kind == method::dma_ring;
  if (!is_by_threads || option.width == 1 || option.width == 4) return 1;
  return option.width < 4 ? 1.08 : 1.04;
}

class cost_table {
 public:
  // Measured on an H100 over PCIe 5 x16 behind a Sapphire Rapids (docs/results/envelope); for machines not yet calibrated.
  static const cost_table& built_in();
  // `query_cost_ns`: duration of the driver call that reports whether host memory is pinned.
  explicit cost_table(std::vector<cost_curve> curves, double query_cost_ns = kUsualQueryNs);

  choice pick(direction way, other_side side, executor present, std::uint64_t bytes) const noexcept {
    return decisions_->by_side[static_cast<std::size_t>(way)][static_cast<std::size_t>(side)]
                              [static_cast<std::size_t>(present)][cell_of(bytes)];
  }
  // The method for host memory of unknown pinned state: it works for pinned and pageable memory, and costs at most as
  // much more than the best method as the driver call would. Width 0: there is no such method, ask the driver.
  choice pick_without_query(direction way, executor present, std::uint64_t bytes) const noexcept {
    return decisions_->without_query[static_cast<std::size_t>(way)][static_cast<std::size_t>(present)][cell_of(bytes)];
  }
  double query_cost_ns() const noexcept { return query_cost_ns_; }
  // The same table without the curves of a method.
  cost_table drop_method(method kind) const;
  const std::vector<cost_curve>& curves() const noexcept { return curves_; }
  // Expected cost; infinite if the method has no curve or does not support this size.
  double cost(direction way, other_side side, const choice& option, std::uint64_t bytes) const;

  // The text of the file, and the parser for it. EINVAL with the line that cannot be parsed.
  std::string text() const;
  static result<cost_table> parse(const std::string& text);

  // Two cells for each of four steps an octave: the round size itself (even cells), and the sizes between it and the
  // next (odd cells; below 8 B there are none between).
  static constexpr std::size_t kCells = 40 * 4 * 2;
  static std::size_t cell_of(std::uint64_t bytes) noexcept {
    if (bytes < 4) return bytes * 2;
    const auto below_step = static_cast<unsigned>(63 - __builtin_clzll(bytes)) - 2;  // bits of a size below its step
    const std::size_t step = (below_step + 1) * 4 + ((bytes >> below_step) & 3);
    const std::size_t cell = step * 2 + ((bytes & ((std::uint64_t{1} << below_step) - 1)) != 0 ? 1 : 0);
    return cell < kCells ? cell : kCells - 1;
  }
  static std::uint64_t smallest_of(std::size_t cell) noexcept {
    const std::size_t step = cell / 2;
    return (step < 8 ? step : std::uint64_t{4 + step % 4} << (step / 4 - 1)) + cell % 2;
  }
  // The size that decides for the whole cell: its middle. Methods begin and end at round sizes only (limits_of), so a
  // method that supports this size supports all sizes of the cell.
  static std::uint64_t middle_of(std::size_t cell) noexcept {
    const std::uint64_t low = smallest_of(cell);
    const std::uint64_t next = cell + 1 < kCells ? smallest_of(cell + 1) : low;
    return next > low ? low + (next - low) / 2 : low;
  }

 private:
  static constexpr double kUsualQueryNs = 120;  // 90 to 200 have been measured
  choice cheapest(direction way, other_side side, executor present, std::uint64_t bytes) const;
  choice cheapest_without_query(direction way, executor present, std::uint64_t bytes) const;
  double cautious_cost(direction way, other_side side, const choice& option, std::uint64_t bytes) const {
    return cost(way, side, option, bytes) * caution(option);
  }
  std::vector<cost_curve> curves_;
  double query_cost_ns_;
  // 36 KiB, on the heap: tables are passed by value, and some threads have stacks of 256 KiB.
  struct decisions {
    std::array<std::array<std::array<std::array<choice, kCells>, kExecutors>, kSides>, 3> by_side;
    std::array<std::array<std::array<choice, kCells>, kExecutors>, 2> without_query;  // to_device, to_host
  };
  std::shared_ptr<const decisions> decisions_;
};

}  // namespace pl::copy
