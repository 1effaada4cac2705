// SPDX-License-Identifier: Apache-2.0
// A producer and a consumer in two processes: a kernel of one puts messages into the other's GPU memory, whose kernel reads
// them while both run. No CPU takes part, and neither process has a CUDA mapping of the other's memory.
//
//   nvcc -std=c++17 -fatbin $(pkg-config --cflags peerlane) kernel_pipe.cu
#include <peerlane/device.cuh>

#include "kernel_pipe.h"

// `mine` is this process's memory, `theirs` the consumer's. The answer: 0, or an error.
extern "C" __global__ void produce_messages(peerlane_device_ring ring, peerlane_device_window mine,
                                            peerlane_device_window theirs, unsigned long long answer) {
  namespace pd = peerlane::device;
  long long code = 0;
  for (unsigned message = 1; message <= kMessages && code >= 0; ++message) {
    const unsigned long long slot = message % kSlots * kMessageBytes;
    // A slot is free, here and there, when the consumer has read what was in it before.
    if (message > kSlots) code = pd::wait_signal(mine, kWordAt, message - kSlots, ring.timeout_ns);
    if (code < 0) break;
    for (unsigned place = 0; place < kMessageBytes; place += 8)
      pd::port::store64(mine.address + slot + place, 1000ull * message + place);
    code = pd::put_signal(ring, theirs, slot, mine, slot, kMessageBytes, theirs, kWordAt, message);
  }
  if (code >= 0) code = pd::wait_signal(mine, kWordAt, kMessages, ring.timeout_ns);
  pd::port::store64(answer, static_cast<unsigned long long>(code));
}

// `mine` is this process's memory, `theirs` the producer's. The answer: words that were wrong, or an error.
extern "C" __global__ void consume_messages(peerlane_device_ring ring, peerlane_device_window mine,
                                            peerlane_device_window theirs, unsigned long long answer) {
  namespace pd = peerlane::device;
  long long code = 0, wrong = 0;
  for (unsigned message = 1; message <= kMessages && code >= 0; ++message) {
    const unsigned long long slot = message % kSlots * kMessageBytes;
    code = pd::wait_signal(mine, kWordAt, message, ring.timeout_ns);
    for (unsigned place = 0; place < kMessageBytes && code >= 0; place += 8)
      wrong += pd::port::load64(mine.address + slot + place) != 1000ull * message + place;
    if (code >= 0) code = pd::signal(ring, theirs, kWordAt, message);  // the slot is free
  }
  if (code >= 0) code = pd::quiet(ring);  // closing a ring may leave undone what is under way
  pd::port::store64(answer, static_cast<unsigned long long>(code < 0 ? code : wrong));
}
