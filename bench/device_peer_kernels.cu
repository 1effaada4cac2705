// SPDX-License-Identifier: Apache-2.0
// What device_peer_bench measures: kernels of two GPUs that answer each other.
#include "cuda/device_port.cuh"

namespace pd = peerlane::device;
using ring_t = peerlane_device_ring;
using window_t = peerlane_device_window;

namespace {
PL_DEVICE void store64(std::uint64_t address, std::uint64_t value) { pl::dev::store_relaxed<std::uint64_t>(address, value); }
}  // namespace

// One of two blocks, each on its GPU: the first writes round i to the other's memory, which then answers likewise. `mode`: 0
// put_signal, 1 the same without flush, 2 stores over the link and a released word. With `checks` the bytes are written anew
// each round and the other looks at all of them when it sees the word. Result: ns of all rounds; words that were old, or an
// error.
PL_KERNEL void answer_peer(ring_t ring, window_t remote, window_t source, window_t local, std::uint64_t bytes,
                           window_t remote_words, window_t local_words, unsigned first, unsigned rounds, unsigned is_second,
                           unsigned mode, unsigned checks, std::uint64_t result) {
  const unsigned self = pl::dev::thread_x(), threads = pl::dev::block_dim_x();
  long long code = 0;
  std::uint64_t old = 0;
  const std::uint64_t begin_ns = pl::dev::global_timer_ns();
  for (unsigned i = 0; i < rounds; ++i) {
    const unsigned round = first + i;
    if (is_second != 0 || i != 0) {  // the answer to the last round, or what is to be answered
      const long long waited = pd::wait_signal_block(local_words, 0, is_second != 0 ? round : round - 1, ring.timeout_ns);
      if (waited < 0) code = waited;
      if (checks != 0)
        for (std::uint64_t place = self * 4; place < bytes; place += threads * 4)
          old += pl::dev::load_relaxed<std::uint32_t>(local.address + place) !=
                 (is_second != 0 ? 2 * round : 2 * (round - 1) + 1);
    }
    const unsigned mark = is_second != 0 ? 2 * round + 1 : 2 * round;
    if (mode == 2) {
      for (std::uint64_t place = self * 4; place < bytes; place += threads * 4)
        pl::dev::store_relaxed<std::uint32_t>(remote.address + place, mark);
      pl::dev::fence_system();
      pl::dev::sync_threads();
      if (self == 0) pl::dev::store_release<std::uint32_t>(remote_words.address, round);
    } else {
      if (checks != 0)
        for (std::uint64_t place = self * 4; place < bytes; place += threads * 4)
          pl::dev::store_relaxed<std::uint32_t>(source.address + place, mark);
      const long long posted = pd::put_signal_block(ring, remote, 0, source, 0, bytes, remote_words, 0, round,
                                                    mode == 1 ? unsigned{PEERLANE_DEVICE_UNFLUSHED} : 0u);
      if (posted < 0) code = posted;
    }
  }
  if (is_second == 0) {
    const long long waited = pd::wait_signal_block(local_words, 0, first + rounds - 1, ring.timeout_ns);
    if (waited < 0) code = waited;
  }
  if (self == 0) store64(result, pl::dev::global_timer_ns() - begin_ns);
  pl::dev::atomic_add<std::uint64_t>(result + 8, old);
  if (code < 0) store64(result + 16, static_cast<std::uint64_t>(code));
}
PL_EXPORT_KERNEL(answer_peer)
