// SPDX-License-Identifier: Apache-2.0
// An exchange of halos within a kernel: a put with a signal for each neighbour, and the wait for theirs.
#include "cuda/device_port.cuh"
#include "tools/triggered/kernels/halo_exchange.h"

namespace pd = peerlane::device;

// A thread for each side. `errors`: a word of 64 bits for each, which stays 0, or has the first error: nothing is sent then.
PL_KERNEL void halo_exchange(pl::async::halo_post post, std::uint64_t errors) {
  const unsigned side = pl::dev::thread_x();
  const auto& target = post.neighbours[side];
  if (target.field.size_bytes == 0 || pl::dev::load_relaxed<std::uint64_t>(errors + 8 * side) != 0) return;
  long long code = pd::put_signal(post.ring, target.field, post.first + (side ^ 1) * post.pitch, post.edges,
                                  post.first + side * post.pitch, post.bytes, target.words,
                                  (side ^ 1) * pl::async::kHaloWordBytes, post.number);
  if (code >= 0) code = pd::wait_signal(post.words, side * pl::async::kHaloWordBytes, post.number, post.ring.timeout_ns);
  if (code < 0) pl::dev::store_release<std::uint64_t>(errors + 8 * side, static_cast<std::uint64_t>(code));
}
PL_EXPORT_KERNEL(halo_exchange)
