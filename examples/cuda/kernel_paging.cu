// SPDX-License-Identifier: Apache-2.0
// A kernel that pages data in: a table in the host's memory, larger than what the kernel keeps of it. While it works on one
// page, a copy engine brings the next one.
//
//   nvcc -std=c++17 -fatbin $(pkg-config --cflags peerlane) kernel_paging.cu
#include <peerlane/device.cuh>

#include "kernel_paging.h"

// Sums the words of `table`. `pages` is GPU memory for two pages; `answers`: the sum, and 0 or an error.
extern "C" __global__ void sum_table(peerlane_device_ring ring, peerlane_device_window table, peerlane_device_window pages,
                                     unsigned long long answers) {
  namespace pd = peerlane::device;
  unsigned long long sum = 0;
  long long tickets[2] = {pd::get(ring, pages, 0, table, 0, kPageBytes), 0};
  int code = 0;
  for (unsigned page = 0; page < kPages && code == 0; ++page) {
    const unsigned long long next = page + 1ull, place_of_page = page % 2ull * kPageBytes;
    if (next < kPages) tickets[next % 2] = pd::get(ring, pages, next % 2 * kPageBytes, table, next * kPageBytes, kPageBytes);
    code = pd::wait(ring, tickets[page % 2]);
    for (unsigned place = 0; place < kPageBytes && code == 0; place += 8)
      sum += pd::port::load64(pages.address + place_of_page + place);
  }
  pd::port::store64(answers, sum);
  pd::port::store64(answers + 8, static_cast<unsigned long long>(static_cast<long long>(code)));
}
