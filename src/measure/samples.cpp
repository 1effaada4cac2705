// SPDX-License-Identifier: Apache-2.0
#include "measure/samples.hpp"

#include <algorithm>

namespace pl {
namespace {

std::uint64_t measure_clock_cost() {
  std::vector<std::uint64_t> costs(2001);
  for (auto& cost : costs) {
    const std::uint64_t begin = ticks_ordered();
    const std::uint64_t end = ticks_ordered();
    cost = end - begin;
  }
  std::nth_element(costs.begin(), costs.begin() + static_cast<std::ptrdiff_t>(costs.size() / 2), costs.end());
  return costs[costs.size() / 2];
}

void take_turn(contender& one, bool counted) {
  // Not counted: see samples.hpp.
  const std::uint64_t begin_ns = one.settle_ns != 0 ? monotonic_ns() : 0;
  do one.operation();
  while (one.settle_ns != 0 && monotonic_ns() - begin_ns < one.settle_ns);
  for (std::size_t i = 0; i < one.turn; ++i) {
    const double taken_ns = one.sample_ns();
    if (counted) one.samples_ns.push_back(taken_ns);
  }
}

}  // namespace

std::uint64_t clock_cost_ticks() {
  static const std::uint64_t cost = measure_clock_cost();
  return cost;
}

std::size_t run_interleaved(std::span<contender> contenders, const interleave_plan& plan) {
  clock_cost_ticks();  // its first-use cost belongs to nobody
  for (auto& one : contenders) one.samples_ns.reserve(plan.rounds * one.turn);
  const std::uint64_t begin_ns = monotonic_ns();
  std::size_t counted = 0;
  for (std::size_t round = 0; round < plan.warm_up_rounds + plan.rounds; ++round) {
    const bool warm = round >= plan.warm_up_rounds;
    if (plan.budget_ns != 0 && counted > 0 && monotonic_ns() - begin_ns > plan.budget_ns) break;
    for (std::size_t i = 0; i < contenders.size(); ++i) take_turn(contenders[(i + round) % contenders.size()], warm);
    if (warm) ++counted;
  }
  return counted;
}

}  // namespace pl
