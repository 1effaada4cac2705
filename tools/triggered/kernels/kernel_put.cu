// SPDX-License-Identifier: Apache-2.0
// Puts that kernels start: how long one takes, and how many a second go.
#include "cuda/device_port.cuh"

namespace pd = peerlane::device;
using ring_t = peerlane_device_ring;
using window_t = peerlane_device_window;

// One block, `rounds` times: a put_signal by one thread (scope 0), a warp (1) or the block (2), until the word is seen in
// `words`, memory of this GPU. `answer`: nanoseconds of all rounds, or an error.
PL_KERNEL void kernel_put_latency(ring_t ring, window_t destination, window_t source, std::uint64_t bytes, window_t words,
                                  unsigned first, unsigned rounds, unsigned scope, std::uint64_t answer) {
  const bool is_first = pl::dev::thread_x() == 0;
  const std::uint64_t begin_ns = pl::dev::global_timer_ns();
  long long code = 0;
  for (unsigned i = 0; i < rounds && code >= 0; ++i) {
    const unsigned value = first + i;
    if (scope == 2) {
      code = pd::put_signal_block(ring, destination, 0, source, 0, bytes, words, 0, value);
      if (is_first && code < 0) break;  // the others learn of it by the word that does not come
      code = pd::wait_signal_block(words, 0, value, ring.timeout_ns);
    } else if (scope == 1) {
      code = pd::put_signal_warp(ring, destination, 0, source, 0, bytes, words, 0, value);
      if (code >= 0) code = pd::wait_signal_warp(words, 0, value, ring.timeout_ns);
    } else {
      code = pd::put_signal(ring, destination, 0, source, 0, bytes, words, 0, value);
      if (code >= 0) code = pd::wait_signal(words, 0, value, ring.timeout_ns);
    }
  }
  if (!is_first) return;
  const std::uint64_t taken_ns = pl::dev::global_timer_ns() - begin_ns;
  pl::dev::store_release<std::uint64_t>(answer, code < 0 ? static_cast<std::uint64_t>(code) : taken_ns);
}
PL_EXPORT_KERNEL(kernel_put_latency)

// Each block moves its slice of `slice_bytes` in pieces of `bytes`, again and again, `count` pieces: piece by piece by one
// thread (scope 0), by a warp whose threads put a piece each (1), or by the block together (2). Answers of the blocks: 0 or
// an error.
PL_KERNEL void kernel_put_rate(ring_t ring, window_t destination, window_t source, std::uint64_t bytes,
                               std::uint64_t slice_bytes, unsigned count, unsigned scope, std::uint64_t answers) {
  const std::uint64_t base = pl::dev::block_x() * slice_bytes, pieces = slice_bytes / bytes;
  const unsigned each = scope == 1 ? pd::port::warp_threads() : 1;
  const unsigned place = scope == 1 ? pd::port::place_in_warp() : 0;
  long long code = 0;
  if (scope == 2 || (scope == 0 ? pl::dev::thread_x() == 0 : pl::dev::thread_x() < each)) {
    for (unsigned i = 0; i < count && code >= 0; i += each) {
      const std::uint64_t offset = base + (i + place) % pieces * bytes;
      code = scope == 2   ? pd::put_block(ring, destination, offset, source, offset, bytes)
             : scope == 1 ? pd::put_each(ring, destination, offset, source, offset, bytes)
                          : pd::put(ring, destination, offset, source, offset, bytes);
    }
    if (pl::dev::thread_x() == 0 && code >= 0) code = pd::quiet(ring);
  }
  if (pl::dev::thread_x() == 0)
    pl::dev::store_release<std::uint64_t>(answers + pl::dev::block_x() * 8, static_cast<std::uint64_t>(code < 0 ? code : 0));
}
PL_EXPORT_KERNEL(kernel_put_rate)
