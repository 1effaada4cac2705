// SPDX-License-Identifier: Apache-2.0
// Latency of single accesses: a shuffled pointer chase timed inside the kernel, and CPU accesses through BAR1.
#pragma once

#include <vector>

#include "tools/bandwidth/buffer.hpp"

namespace pl::bandwidth {

struct chase_spec {
  int gpu = 0;                      // whose multiprocessor loads
  place list;                       // where the list lies
  std::uint64_t bytes = 2u << 20;   // of the list; one node a 128-byte line
  std::uint64_t accesses = 20'000;  // timed one by one
  std::uint64_t seed = 1;
  bool by_bulk_copies = false;  // each access a bulk copy (TMA) into shared memory, not a load
  bool sequential = false;      // the original's order: next line, next line
};

struct latency_outcome {
  std::vector<double> samples_ns;  // single accesses, clock cost removed, in order of time
  double mean_ns = 0;              // of an untimed-inside chase of as many accesses: whole time / accesses
};

// The chain visits every line of the list once, in random order (Sattolo), before it repeats; one warm-up pass goes first
// (lists that fit the L2 are then L2 latency; longer ones are memory latency).
result<latency_outcome> run_chase(gpu_set& gpus, buffer_pool& pool, const chase_spec& spec);

// CPU loads (8 bytes, different lines, one at a time) from GPU memory through BAR1.
result<latency_outcome> run_bar_load(gpu_set& gpus, buffer_pool& pool, int gpu, std::uint64_t accesses);
// CPU store to GPU memory until the CPU has flushed it out (store + fence): what the CPU pays, not the arrival.
result<latency_outcome> run_bar_store(gpu_set& gpus, buffer_pool& pool, int gpu, std::uint64_t accesses);
// CPU store to GPU memory, seen by a polling kernel that answers into pinned memory: whole round trip.
result<latency_outcome> run_bar_round_trip(gpu_set& gpus, buffer_pool& pool, int gpu, std::uint64_t accesses);

}  // namespace pl::bandwidth
