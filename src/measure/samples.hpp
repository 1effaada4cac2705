// SPDX-License-Identifier: Apache-2.0
// How Peerlane measures time.
//
// One operation is timed by reading the CPU's counter before and after it (clock.hpp; both reads wait for earlier
// instructions, so the interval holds the whole operation and nothing else). What the two reads themselves cost is measured
// on an empty operation in the same way, in the same run, and subtracted; results below zero become zero. A GPU mapping
// read takes about a microsecond and a write tens of nanoseconds, so neither averaging over batches (hides the tail) nor an
// unsubtracted clock (adds up to 30 % to a small write) would be honest.
//
// Contenders that are compared run interleaved in one process: every round gives each contender a turn of a few operations,
// the order rotates from round to round, so that clock changes, other processes and link power states hit all alike. The
// first operation of each turn is not counted (it pays for cold instruction and branch caches left by the contender
// before), neither are the warm-up rounds. Raw samples are kept; every figure reported is a measured sample (nearest-rank
// quantiles, statistics.hpp): the median as the typical value, p99 as the tail, the minimum as the floor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/statistics.hpp"

namespace pl {

// Ticks that timing an empty operation takes (median of many). Measured once per process on first use.
std::uint64_t clock_cost_ticks();

// Nanoseconds of one call of `operation`, clock cost removed, at least 0.
template <class Operation>
double time_once_ns(Operation&& operation) {
  const std::uint64_t cost = clock_cost_ticks();
  const std::uint64_t begin = ticks_ordered();
  operation();
  const std::uint64_t end = ticks_ordered();
  const std::uint64_t taken = end - begin;
  return taken > cost ? ticks_to_ns(taken - cost) : 0.0;
}

// `count` timed calls after `warm_up` untimed ones.
template <class Operation>
std::vector<double> time_each_ns(std::size_t warm_up, std::size_t count, Operation&& operation) {
  for (std::size_t i = 0; i < warm_up; ++i) operation();
  std::vector<double> samples_ns;
  samples_ns.reserve(count);
  for (std::size_t i = 0; i < count; ++i) samples_ns.push_back(time_once_ns(operation));
  return samples_ns;
}

// One side of a comparison.
//
// The operation is timed inside a function made for its type, so that the indirect call which picks the contender lies
// before the first clock reading. Between the readings it could be mispredicted into another contender, whose loads from the
// mapping are then real bus reads in the way of the measured ones (seen: 2.1 us instead of 1.05 at one alignment of 64).
struct contender {
  // `turn` samples are taken in a row; each is the mean of `calls_per_sample` calls. More than 1 for short writes: a store
  // fence often lets the *next* call wait for the write-combining buffers to drain, so single calls fall into two heaps
  // (8 and 140 ns) and a median is luck.
  template <class Operation>
  contender(std::string its_name, Operation its_operation, std::size_t its_turn = 1, std::size_t calls_per_sample = 1)
      : name(std::move(its_name)),
        operation(its_operation),
        turn(its_turn),
        sample_ns([its_operation, calls_per_sample]() mutable {
          const double taken_ns = time_once_ns([&] {
            for (std::size_t call = 0; call < calls_per_sample; ++call) its_operation();
          });
          return taken_ns / static_cast<double>(calls_per_sample);
        }) {}

  std::string name;
  std::function<void()> operation;
  std::size_t turn;
  // A turn begins with this much time of the operation that is not counted (at least one call). For contenders with helper
  // threads, which fall asleep during the other contenders' turns: what is measured is the operation in a loop.
  std::uint64_t settle_ns = 0;
  std::function<double()> sample_ns;
  std::vector<double> samples_ns;  // filled by run_interleaved
};

struct interleave_plan {
  std::size_t warm_up_rounds = 2;
  std::size_t rounds = 100;
  std::uint64_t budget_ns = 0;  // stop after this time even if rounds are left (at least one counted round); 0: no limit
};

// Returns the number of counted rounds. A contender whose operation throws ends the run (exceptions pass through).
std::size_t run_interleaved(std::span<contender> contenders, const interleave_plan& plan);

}  // namespace pl
