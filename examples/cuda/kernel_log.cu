// SPDX-License-Identifier: Apache-2.0
// A kernel that logs to the host while it computes: it fills a record in GPU memory, and a copy engine brings it to the host
// with a count behind it. The kernel does not wait for its records, only for room in the ring.
//
//   nvcc -std=c++17 -fatbin $(pkg-config --cflags peerlane) kernel_log.cu
#include <peerlane/device.cuh>

#include "kernel_log.h"

// `records` in GPU memory, `log` in the host's, both with `steps` places; `count` is a word of the host's.
extern "C" __global__ void compute_and_log(peerlane_device_ring ring, peerlane_device_window records,
                                           peerlane_device_window log, peerlane_device_window count, unsigned steps,
                                           unsigned long long answer) {
  namespace pd = peerlane::device;
  long long ticket = 0;
  double estimate = 0;
  for (unsigned step = 0; step < steps && ticket >= 0; ++step) {
    for (unsigned term = step * kTermsOfAStep; term < (step + 1) * kTermsOfAStep; ++term)
      estimate += (term % 2 == 0 ? 4.0 : -4.0) / (2.0 * term + 1.0);
    const unsigned long long place = step * sizeof(log_record);
    pd::port::store64(records.address + place, step);
    pd::port::store64(records.address + place + 8, static_cast<unsigned long long>(estimate * 1e9));
    ticket = pd::put_signal(ring, log, place, records, place, sizeof(log_record), count, 0, step + 1);
  }
  if (ticket >= 0) ticket = pd::quiet(ring);
  pd::port::store64(answer, static_cast<unsigned long long>(ticket));
}
