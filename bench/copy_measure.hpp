// SPDX-License-Identifier: Apache-2.0
// How long one call of a copy routine takes. Reusable: `device` may be ordinary memory (call overhead) or a real mapping.
//
// Method. A call of a few nanoseconds is shorter than the clock is precise, so that a sample is a batch of calls, long
// enough to take about 2 us, divided by their number; on a real mapping a call is usually a batch by itself. Batches of
// all candidates alternate, round by round, so that a change of clock frequency or a neighbour on the machine hits all of
// them and not one. Quantiles are over the samples and nothing is discarded. A store's time is that of *issuing* it; with
// `fenced` each call is followed by the fence that its direction needs, which is what a user of one copy pays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "arch/copy_dispatch.hpp"
#include "base/clock.hpp"
#include "base/statistics.hpp"

namespace pl::bench {

enum class direction { write, read, fill };

struct candidate {
  arch::copy_ops ops;
  std::vector<double> samples_ns;  // one for each round
};

struct measure_options {
  direction way = direction::write;
  arch::mapping_type type = arch::mapping_type::wc;  // decides the fences
  bool fenced = false;
  std::size_t rounds = 400;
};

inline void call_once(const arch::copy_ops& ops, void* device, void* host, std::size_t bytes,
                      const measure_options& options) {
  if (options.way == direction::read) {
    if (options.fenced) arch::order_before_reads(options.type);
    ops.read(host, device, bytes);
    if (options.fenced) arch::order_after_reads(options.type);
    return;
  }
  if (options.way == direction::write) ops.write(device, host, bytes);
  else ops.fill(device, 0x0101010101010101u, bytes);
  if (options.fenced) arch::publish_to_device(options.type);
}

// Total nanoseconds of `calls` calls.
inline double time_batch(const arch::copy_ops& ops, void* device, void* host, std::size_t bytes, std::size_t calls,
                         const measure_options& options) {
  const std::uint64_t begin = ticks_ordered();
  for (std::size_t i = 0; i < calls; ++i) call_once(ops, device, host, bytes, options);
  return ticks_to_ns(ticks_ordered() - begin);
}

inline std::size_t calls_per_batch(const arch::copy_ops& ops, void* device, void* host, std::size_t bytes,
                                   const measure_options& options) {
  constexpr double kBatchNs = 2000;
  constexpr std::size_t kProbe = 16;
  time_batch(ops, device, host, bytes, kProbe, options);  // first touch, cold code
  const double one = time_batch(ops, device, host, bytes, kProbe, options) / kProbe;
  return std::clamp<std::size_t>(one > 0 ? static_cast<std::size_t>(kBatchNs / one) : 1000, 1, 1000);
}

// Appends `rounds` samples to each candidate. `device` and `host` hold at least `bytes` bytes each.
inline void measure(std::vector<candidate>& candidates, void* device, void* host, std::size_t bytes,
                    const measure_options& options) {
  std::vector<std::size_t> calls;
  for (const candidate& one : candidates) calls.push_back(calls_per_batch(one.ops, device, host, bytes, options));
  for (std::size_t round = 0; round < options.rounds; ++round)
    for (std::size_t i = 0; i < candidates.size(); ++i)
      candidates[i].samples_ns.push_back(time_batch(candidates[i].ops, device, host, bytes, calls[i], options) /
                                         static_cast<double>(calls[i]));
}

}  // namespace pl::bench
