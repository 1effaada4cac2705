// SPDX-License-Identifier: Apache-2.0
// The collectives of a library that is compared, as blocking calls: what the OSU programs measure. Blocks are by rank.
#pragma once

#include <cstddef>
#include <span>

#include "tools/p2p/transport.hpp"

namespace pl::p2p {

// Memory of all buffers of a run.
struct exchange {
  const void* source = nullptr;
  void* destination = nullptr;
  memory_kind kind = memory_kind::host;
};

// Collective calls: every rank, in the same order. Each throws tools::tool_failure when the library refuses. Reductions are
// sums of float32. `bytes` are of one block.
class collective_calls {
 public:
  virtual ~collective_calls() = default;
  virtual void barrier() = 0;
  virtual void broadcast(void* data, std::size_t bytes, memory_kind kind, int root) = 0;
  virtual void gather(const exchange& memory, std::size_t bytes, int root) = 0;
  virtual void scatter(const exchange& memory, std::size_t bytes, int root) = 0;
  virtual void all_gather(const exchange& memory, std::size_t bytes) = 0;
  virtual void reduce(const exchange& memory, std::size_t count, int root) = 0;
  virtual void all_reduce(const exchange& memory, std::size_t count) = 0;
  virtual void reduce_scatter(const exchange& memory, std::span<const std::size_t> counts) = 0;
  virtual void all_to_all(const exchange& memory, std::size_t bytes) = 0;
  // Lengths and offsets in bytes, the same on both sides.
  virtual void all_to_all_v(const exchange& memory, std::span<const std::size_t> bytes,
                            std::span<const std::size_t> offsets) = 0;
};

}  // namespace pl::p2p
