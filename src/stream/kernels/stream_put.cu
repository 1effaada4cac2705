// SPDX-License-Identifier: Apache-2.0
// A small message in one launch: the bytes, then the receiver's word, then the sender's own; and a wait that polls.
#include "kernel_device.cuh"

using namespace pl::dev;

namespace {

PL_DEVICE void copy_bytes(std::uint64_t dst, std::uint64_t src, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t i = begin + thread_x(); i < end; i += block_dim_x())
    store_relaxed<std::uint8_t>(dst + i, load_relaxed<std::uint8_t>(src + i));
}

template <class T>
PL_DEVICE void copy_words(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes) {
  for (std::uint64_t i = thread_x() * sizeof(T); i + sizeof(T) <= bytes; i += block_dim_x() * sizeof(T))
    store_relaxed<T>(dst + i, load_relaxed<T>(src + i));
  copy_bytes(dst, src, bytes / sizeof(T) * sizeof(T), bytes);
}

PL_DEVICE void copy_vectors(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes) {
  for (std::uint64_t i = thread_x() * 16ull; i + 16 <= bytes; i += block_dim_x() * 16ull)
    store_stream_vec16(dst + i, load_stream_vec16(src + i));
  copy_bytes(dst, src, bytes / 16 * 16, bytes);
}

}  // namespace

// One block. `bytes` may be 0; the words at `flag` and `sent` are written in this order (0: not written). One fence is
// enough: the barrier orders every thread's stores before thread 0's release, and a release is cumulative.
PL_KERNEL void stream_put(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes, std::uint64_t flag,
                          std::uint64_t flag_value, std::uint64_t sent, std::uint64_t sent_value) {
  const std::uint64_t together = dst | src;
  if (together % 16 == 0) copy_vectors(dst, src, bytes);
  else if (together % 8 == 0) copy_words<std::uint64_t>(dst, src, bytes);
  else if (together % 4 == 0) copy_words<std::uint32_t>(dst, src, bytes);
  else copy_bytes(dst, src, 0, bytes);
  sync_threads();
  if (thread_x() != 0) return;
  if (flag != 0) store_release<std::uint64_t>(flag, flag_value);
  // Behind the release, and nobody who reads it looks at the data.
  if (sent != 0) store_relaxed<std::uint64_t>(sent, sent_value);
}

// One thread. Says that it is there, then stays until the word at `word` has come to `value`, cyclically, or is poison.
PL_KERNEL void stream_wait(std::uint64_t word, std::uint64_t value, std::uint64_t reached, std::uint64_t reached_value) {
  store_relaxed<std::uint64_t>(reached, reached_value);
  while (static_cast<std::int64_t>(load_acquire<std::uint64_t>(word) - value) < 0) let_others_run();
}

PL_EXPORT_KERNEL(stream_put)
PL_EXPORT_KERNEL(stream_wait)
