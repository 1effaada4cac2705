// SPDX-License-Identifier: Apache-2.0
// What a job on a worker pool costs the caller, in nanoseconds (median and 99th percentile).
//   hot empty  one empty part for each thread: what claiming costs, and waiting for whoever claimed
//   hot 2 us   one part of 2 us for each thread: 2000 would be perfect, 2000 x width means that nobody helped
//   cold       the same when all helpers sleep: the caller wakes them and goes on
//
//     worker_pool_bench [samples]
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "copy/cpu_copy.hpp"
#include "copy/worker_pool.hpp"

namespace {

using namespace pl;

void busy(std::uint64_t ns) {
  const std::uint64_t deadline = ticks() + ns * ticks_per_ms() / 1'000'000;
  while (ticks() < deadline) arch::relax();
}

void nap(long ns) {
  const timespec time{0, ns};
  nanosleep(&time, nullptr);
}

template <class Body>
summary measure(copy::worker_pool& pool, unsigned width, bool is_cold, std::size_t samples, const Body& body) {
  std::vector<double> all;
  for (std::size_t i = 0; i < samples; ++i) {
    if (is_cold) nap(2'000'000);
    else busy(1000);
    const std::uint64_t begin = ticks_ordered();
    pool.run(width, width, body);
    all.push_back(ticks_to_ns(ticks_ordered() - begin));
  }
  return summarize(all);
}

void print(const summary& s) { std::printf(" %9.0f/%8.0f", s.p50, s.p99); }

void print_copies(copy::worker_pool& pool) {
  constexpr std::size_t kMaxBytes = 16u << 20;
  std::vector<unsigned char> source(kMaxBytes, 1);
  std::vector<unsigned char> destination(kMaxBytes, 2);
  std::printf("\ncopy_host_parallel (GB/s, median)\n%8s", "bytes");
  for (unsigned width = 1; width <= pool.helpers() + 1; ++width) std::printf("  width %u", width);
  std::printf("\n");
  for (std::size_t bytes = 16384; bytes <= kMaxBytes; bytes *= 4) {
    std::printf("%8zu", bytes);
    for (unsigned width = 1; width <= pool.helpers() + 1; ++width) {
      std::vector<double> all;
      for (int i = 0; i < 100; ++i) {
        const std::uint64_t begin = ticks_ordered();
        copy::copy_host_parallel(pool, width, destination.data(), source.data(), bytes);
        all.push_back(ticks_to_ns(ticks_ordered() - begin));
      }
      std::printf(" %8.2f", static_cast<double>(bytes) / summarize(all).p50);
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t samples = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 3000;
  copy::worker_pool pool({.helpers = 7, .cpus = {}});
  std::printf("%u helpers\n%8s %18s %18s %18s %18s\n", pool.helpers(), "width", "hot empty", "hot 2 us", "cold empty",
              "cold 2 us");
  const auto empty = [](std::size_t) {};
  const auto two_us = [](std::size_t) { busy(2000); };
  for (unsigned width = 1; width <= pool.helpers() + 1; ++width) {
    pool.run(width, width, two_us);  // starts the threads
    std::printf("%8u", width);
    print(measure(pool, width, false, samples, empty));
    print(measure(pool, width, false, samples, two_us));
    print(measure(pool, width, true, samples / 20, empty));
    print(measure(pool, width, true, samples / 20, two_us));
    std::printf("\n");
  }
  print_copies(pool);
  return 0;
}
