// SPDX-License-Identifier: Apache-2.0
// What a published counter costs: nothing asked for, asked for, and several threads at one counter. Run twice:
//   live_counter_bench                          off, as by default
//   PEERLANE_STATISTICS=1 live_counter_bench
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/live_counter.hpp"

namespace {

pl::live_pair g_copies{"bench.copies.count", "bench.copies.bytes"};
constexpr int kRounds = 9;
constexpr int kAdds = 2'000'000;

template <class Body>
double lowest_ns(Body body) {
  double lowest = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    lowest = std::min(lowest, took.count() / kAdds);
  }
  return lowest;
}

void keep(std::uint64_t value) { asm volatile("" : : "r"(value) : "memory"); }

}  // namespace

int main() {
  const bool published = pl::publish_live_counters();
  const double empty = lowest_ns([] {
    for (int i = 0; i < kAdds; ++i) keep(static_cast<std::uint64_t>(i));
  });
  const double counted = lowest_ns([] {
    for (int i = 0; i < kAdds; ++i) {
      keep(static_cast<std::uint64_t>(i));
      g_copies.add(64);
    }
  });
  const double shared = lowest_ns([] {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 2; ++t)
      threads.emplace_back([] {
        for (int i = 0; i < kAdds; ++i) g_copies.add(64);
      });
  });
  std::printf("published %s: a loop alone %.2f ns, with a pair counted %.2f ns (%.2f more), two threads at once %.2f ns\n",
              published ? "yes" : "no", empty, counted, counted - empty, shared);
}
