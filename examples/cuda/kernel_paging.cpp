// SPDX-License-Identifier: Apache-2.0
// The host's side of kernel_paging.cu: a table that the kernel sums page by page.
//
//   c++ -std=c++20 -I../c kernel_paging.cpp $(pkg-config --cflags --libs peerlane) -lcuda && ./a.out kernel_paging.fatbin
#include "kernel_paging.h"

#include <numeric>
#include <peerlane/device.hpp>
#include <vector>

#include "kernel_gpu.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: kernel_paging FILE_WITH_KERNELS\n"), 2;
  const unsigned long long memory = gpu_memory(0, 131072), answers = memory + 65536;
  std::vector<unsigned long long> words(std::size_t{kPages} * kPageBytes / 8);
  std::iota(words.begin(), words.end(), 7ull);
  const auto device = demand(peerlane::device_rings::open());
  auto ring = demand(device.ring());
  auto table = demand(device.add_window(peerlane_host_buffer(words.data(), words.size() * 8)));
  auto pages = demand(device.add_window(peerlane::device_buffer(memory, 2 * kPageBytes)));

  unsigned long long answers_at = answers, seen[2] = {};
  void* parameters[] = {&ring, &table, &pages, &answers_at};
  void* const stream = launch_kernel(argv[1], "sum_table", parameters);
  if (cuStreamSynchronize(stream) != 0 || cuMemcpyDtoH_v2(seen, answers, sizeof seen) != 0)
    return std::fprintf(stderr, "the kernel failed\n"), 1;
  const auto expected = std::accumulate(words.begin(), words.end(), 0ull);
  std::printf("%d pages of %d bytes through memory for two: the sum is %llu, %s\n", int{kPages}, int{kPageBytes}, seen[0],
              seen[0] == expected ? "as the CPU has it" : "WRONG");
  return seen[1] == 0 && seen[0] == expected ? 0 : 1;
}
