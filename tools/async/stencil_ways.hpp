// SPDX-License-Identifier: Apache-2.0
// A rank's block on its GPU, and the ways in which its edges get to the neighbours.
//
// Step s reads field and ghosts (s - 1) % 2, writes field and edges s % 2; then edges s % 2 go to the neighbours' ghosts
// s % 2. Why nothing is overwritten too early, without any release: a neighbour's edges of step s + 2 come into the place of
// those of step s. It sends them after its step s + 2, which came after its wait for our edges of step s + 1, and our stream
// sent these after our step s + 1, the one that read the place. (With one place instead of two, the neighbour's edges of
// step s + 1 would only be behind our edges of step s, while our step s + 1 may still be reading.) The source: edges s % 2
// are written again by step s + 2, in the order of the same stream that sent them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "exchange.hpp"
#include "station.hpp"
#include "stencil_field.hpp"

namespace pl::async {

class gpu_block {
 public:
  gpu_block(station& at, const block_place& place);
  ~gpu_block();
  gpu_block(const gpu_block&) = delete;
  gpu_block& operator=(const gpu_block&) = delete;

  station& at() const { return at_; }
  const block_place& place() const { return place_; }
  std::size_t edge_bytes() const { return 8 * static_cast<std::size_t>(place_.n); }
  // Offsets of an edge in the windows: of a step, by side.
  std::uint64_t edge_offset(std::uint64_t step, side of) const {
    return (step % 2 * kSides + static_cast<std::uint64_t>(of)) * edge_bytes();
  }
  void launch(std::uint64_t step) const;
  // The first field and what lies around it.
  void reset() const;
  // The field after `step`, on the CPU.
  std::vector<double> field(std::uint64_t step) const;

 private:
  std::size_t field_bytes() const { return edge_bytes() * static_cast<std::size_t>(place_.n); }
  station& at_;
  const block_place place_;
  tools::device_memory first_;
  std::array<tools::device_memory, 2> fields_;
  cu::module_t module_ = nullptr;
  cu::function_t kernel_ = nullptr;
};

class stencil_way {
 public:
  virtual ~stencil_way() = default;
  // Steps first, first + 1, ..., each with its exchange: queued or done.
  virtual void advance(const gpu_block& block, std::uint64_t first, int count) = 0;
  virtual void finish() = 0;
  std::uint64_t enqueue_ns = 0;  // as in exchange
};

// Collective. Arms without a stencil form: tool_failure.
std::unique_ptr<stencil_way> make_stencil_way(station& at, const block_place& place, arm which);

}  // namespace pl::async
