// SPDX-License-Identifier: Apache-2.0
// Call overhead of the CPU copy routines on ordinary memory, in nanoseconds per call (median and 99th percentile of
// batch averages; copy_measure.hpp says how). Says nothing about a bus: non-temporal stores to ordinary memory go to DRAM,
// streaming loads come from the cache.
//
//     copy_bench [rounds]
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "arch/copy_routines.hpp"
#include "bench/copy_measure.hpp"

namespace {

using namespace pl;

struct kind {
  const char* title;
  bench::measure_options options;
  std::size_t device_offset;
};

void print_table(const kind& table, unsigned char* device, unsigned char* host) {
  std::printf("\n%s (ns per call: median / p99)\n%8s", table.title, "bytes");
  std::vector<arch::copy_ops> all(arch::supported_copy_ops().begin(), arch::supported_copy_ops().end());
  all.push_back({"libc", arch::cached::write, arch::cached::read, arch::cached::fill});
  for (const auto& ops : all) std::printf(" %16s", ops.name);
  std::printf("\n");
  for (const std::size_t bytes : {1u, 4u, 7u, 8u, 16u, 31u, 64u, 100u, 256u, 1000u, 1024u, 4096u}) {
    std::vector<bench::candidate> candidates;
    for (const auto& ops : all) candidates.push_back({ops, {}});
    bench::measure(candidates, device + table.device_offset, host, bytes, table.options);
    std::printf("%8zu", bytes);
    for (const auto& one : candidates) {
      const summary result = summarize(one.samples_ns);
      std::printf(" %8.1f/%7.1f", result.p50, result.p99);
    }
    std::printf("\n");
  }
}

unsigned char* pages() {
  void* const memory = mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<unsigned char*>(memory);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 400;
  unsigned char* const device = pages();
  unsigned char* const host = pages() + 1;  // unaligned, as users' buffers are
  std::printf("chosen on this CPU: write %s, read %s; %zu rounds\n", arch::write_isa_name(), arch::read_isa_name(), rounds);
  using bench::direction;
  const bench::measure_options write{.way = direction::write, .rounds = rounds},
      read{.way = direction::read, .rounds = rounds};
  const bench::measure_options fill{.way = direction::fill, .rounds = rounds};
  bench::measure_options fenced = write;
  fenced.fenced = true;
  print_table({"write, device at the start of a line", write, 0}, device, host);
  print_table({"write, device at line offset 8", write, 8}, device, host);
  print_table({"write + sfence, device at the start of a line", fenced, 0}, device, host);
  print_table({"read, device at the start of a line", read, 0}, device, host);
  print_table({"read, device at line offset 7", read, 7}, device, host);
  print_table({"fill, device at the start of a line", fill, 0}, device, host);
  return 0;
}
