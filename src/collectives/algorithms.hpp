// SPDX-License-Identifier: Apache-2.0
// The schedules of one rank for each collective and algorithm. `bytes` are one rank's block. Memory of reductions is of one
// kind; a GPU's has a combiner. Where source and destination may be the same memory, a function says so.
//
// The order in which a reduction combines the ranks' contributions depends on the algorithm, the ranks and the count alone;
// every rank that gets a result gets the same one.
//
// Owns: nothing. Threads: any. Errors: none.
#pragma once

#include <span>

#include "collectives/algorithm_table.hpp"
#include "collectives/schedule.hpp"

namespace pl::collectives {

struct own_place {  // of the rank among all
  int rank = 0, size = 1;
  int after(int distance) const noexcept { return (rank + distance) % size; }
  int before(int distance) const noexcept { return (rank - distance % size + size) % size; }
};

struct summation {
  element type = element::uint8;
  reduction op = reduction::sum;
  std::size_t bytes(std::size_t count) const noexcept { return count * size_of(type); }
};

void plan_barrier(schedule& out, own_place own);
void plan_broadcast(schedule& out, own_place own, algorithm chosen, place data, std::size_t bytes, int root);
// In place at the root: its block lies where it belongs.
void plan_gather(schedule& out, own_place own, algorithm chosen, place source, place destination, std::size_t bytes,
                 int root);
void plan_scatter(schedule& out, own_place own, algorithm chosen, place source, place destination, std::size_t bytes,
                  int root);
void plan_all_gather(schedule& out, own_place own, algorithm chosen, place source, place destination, std::size_t bytes);
// In place: source == destination. `destination` counts at the root only.
void plan_reduce(schedule& out, own_place own, algorithm chosen, summation terms, place source, place destination,
                 std::size_t count, int root);
void plan_all_reduce(schedule& out, own_place own, algorithm chosen, summation terms, place source, place destination,
                     std::size_t count);
// In place: destination is this rank's block of source.
void plan_reduce_scatter(schedule& out, own_place own, summation terms, place source, place destination,
                         std::span<const std::size_t> counts);

// One side of an all-to-all: the blocks by rank.
struct block_list {
  place base;
  std::span<const std::size_t> bytes, offsets;
  place block_of(int rank) const noexcept { return base + offsets[static_cast<std::size_t>(rank)]; }
  std::size_t bytes_of(int rank) const noexcept { return bytes[static_cast<std::size_t>(rank)]; }
};
// Source and destination do not overlap. `how`: linear or pairwise.
void plan_all_to_all_v(schedule& out, own_place own, algorithm chosen, const block_list& source,
                       const block_list& destination);
void plan_bruck_all_to_all(schedule& out, own_place own, place source, place destination, std::size_t bytes);

}  // namespace pl::collectives
