// SPDX-License-Identifier: Apache-2.0
// The methods that send the edges of a rank's block to its neighbours.
//
// Halos have two places, used in turn. Why nothing is overwritten too early, without any release: a neighbour's edges of
// exchange e + 2 come into the place of those of e. It sends them after its wait for our edges of exchange e + 1, and our
// stream sent these after the kernels that read e: whoever computes reads the halos of the last exchange only. (With one
// place instead of two, the neighbour's edges of e + 1 would only be behind our edges of e, while we may still be reading.)
// The source: edges are written again two exchanges later, in the order of the same stream that sent them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tools/triggered/bench_rank.hpp"
#include "tools/triggered/block_place.hpp"
#include "tools/triggered/exchange.hpp"

namespace pl::async {

// An edge for each side, at the same place of both windows.
struct halo {
  std::uint64_t first = 0, pitch = 0;  // offset of side `up`, and from one side to the next
  std::size_t bytes = 0;               // of an edge
  std::uint64_t offset(side direction) const { return first + static_cast<std::uint64_t>(direction) * pitch; }
};

// Work that is done again and again: launches kernels, and calls halo_method::exchange after those whose edges are needed.
using halo_period = std::function<void()>;

class halo_method {
 public:
  virtual ~halo_method() = default;
  // Before the time is taken: `count` periods will be asked for at once. The work is another one after forget().
  virtual void prepare(int, const halo_period&) {}
  virtual void forget() {}
  // `count` times the work: queued or done.
  virtual void advance(int count, const halo_period& period) = 0;
  // Within a period, with its edges written: the neighbours' are here for what is launched next.
  virtual void exchange(const halo& edges) = 0;
  virtual void finish() = 0;
  std::uint64_t enqueue_ns = 0;  // as in async::exchange
};

// Collective. `place`: its n does not matter. Arms without a form for halos: tool_failure.
std::unique_ptr<halo_method> make_halo_method(bench_rank& session, const block_place& place, arm kind);

}  // namespace pl::async
