// SPDX-License-Identifier: Apache-2.0
// A small message in one launch: the bytes, then the receiver's word, then the sender's own; and a wait that polls. The same
// for graphs, whose values cannot grow: those kernels count by themselves, in words of their own GPU.
#include "cuda/device_port.cuh"

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

PL_DEVICE void copy_all(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes) {
  const std::uint64_t together = dst | src;
  if (together % 16 == 0) copy_vectors(dst, src, bytes);
  else if (together % 8 == 0) copy_words<std::uint64_t>(dst, src, bytes);
  else if (together % 4 == 0) copy_words<std::uint32_t>(dst, src, bytes);
  else copy_bytes(dst, src, 0, bytes);
}

PL_DEVICE void poll_until(std::uint64_t word, std::uint64_t value) {
  while (static_cast<std::int64_t>(load_acquire<std::uint64_t>(word) - value) < 0) let_others_run();
}

// What this launch is the how manieth of. Launches that count with one word come one after the other.
PL_DEVICE std::uint64_t count_on(std::uint64_t counter) {
  const std::uint64_t number = load_relaxed<std::uint64_t>(counter) + 1;
  store_relaxed<std::uint64_t>(counter, number);
  return number;
}

// A put by the copy engine, whose addresses these are; `place`: where the destination is (enum peerlane_device_place; 0 for
// memory of this GPU). Returns when the source may be used again. An error goes to the word at `error`.
PL_DEVICE void post_put(const peerlane_device_ring& ring, std::uint64_t dst, std::uint32_t place, std::uint64_t src,
                        std::uint64_t bytes, std::uint64_t flag, std::uint64_t value, std::uint64_t error) {
  namespace pd = peerlane::device;
  constexpr std::uint64_t kPieceBytes = 1ull << 30;
  const peerlane_device_window target{0, dst, bytes, place, 0}, origin{0, src, bytes, 0, 0}, word{0, flag, 8, place, 0};
  std::uint64_t done = 0;
  long long ticket = 0;
  for (; bytes - done > kPieceBytes && ticket >= 0; done += kPieceBytes)
    ticket = pd::put(ring, target, done, origin, done, kPieceBytes);
  if (ticket >= 0)
    ticket = flag != 0
                 ? pd::put_signal(ring, target, done, origin, done, bytes - done, word, 0, static_cast<unsigned>(value))
                 : pd::put(ring, target, done, origin, done, bytes - done);
  if (ticket >= 0 && flag != 0 && value >> 32 != 0) ticket = pd::signal(ring, word, 4, static_cast<unsigned>(value >> 32));
  const long long code = ticket >= 0 ? pd::wait(ring, ticket) : ticket;
  if (code < 0) store_release<std::uint64_t>(error, static_cast<std::uint64_t>(-code));
}

}  // namespace

// One block. `bytes` may be 0; the words at `flag` and `sent` are written in this order (0: not written). One fence is
// enough: the barrier orders every thread's stores before thread 0's release, and a release is cumulative.
PL_KERNEL void stream_put(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes, std::uint64_t flag,
                          std::uint64_t flag_value, std::uint64_t sent, std::uint64_t sent_value) {
  copy_all(dst, src, bytes);
  sync_threads();
  if (thread_x() != 0) return;
  if (flag != 0) store_release<std::uint64_t>(flag, flag_value);
  // Behind the release, and nobody who reads it looks at the data.
  if (sent != 0) store_relaxed<std::uint64_t>(sent, sent_value);
}

// A put cut into pieces, a block for each: piece `first` + block goes into place (first + block) % places of `slots` and
// then rings the place's doorbell, so that the taker need not wait for the others. The last block to end writes
// `doorbell`; `counter`, a word of this GPU's memory, is 0 before and after.
PL_KERNEL void stream_put_spread(std::uint64_t slots, std::uint64_t slot_doorbells, std::uint64_t slot_bytes,
                                 std::uint64_t places, std::uint64_t src, std::uint64_t bytes, std::uint64_t piece_bytes,
                                 std::uint64_t first, std::uint64_t counter, std::uint64_t doorbell,
                                 std::uint64_t doorbell_value) {
  const std::uint64_t piece = first + block_x(), place = piece % places, offset = block_x() * piece_bytes;
  copy_all(slots + place * slot_bytes, src + offset, bytes - offset < piece_bytes ? bytes - offset : piece_bytes);
  sync_threads();
  if (thread_x() != 0) return;
  store_release<std::uint64_t>(slot_doorbells + 8 * place, piece);
  fence_system();
  if (atomic_add<std::uint64_t>(counter, 1) + 1 != grid_dim_x()) return;
  fence_system();
  store_relaxed<std::uint64_t>(counter, 0);
  store_release<std::uint64_t>(doorbell, doorbell_value);
}

// One thread. Says that it is there, then stays until the word at `word` has come to `value`, cyclically, or is poison.
PL_KERNEL void stream_wait(std::uint64_t word, std::uint64_t value, std::uint64_t reached, std::uint64_t reached_value) {
  store_relaxed<std::uint64_t>(reached, reached_value);
  poll_until(word, value);
}

// One block. Put `counter` + 1 of a graph's: waits until the word at `ack` allows `depth` puts that have not been released
// (0: any), copies, counts and tells the peer's word at `flag`. Without a flag only the wait is done, for bytes that are
// copied otherwise before the launch that counts.
PL_KERNEL void stream_put_counted(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes, std::uint64_t counter,
                                  std::uint64_t flag, std::uint64_t ack, std::uint64_t depth, std::uint64_t reached) {
  if (depth != 0) {
    if (thread_x() == 0) {
      const std::uint64_t number = load_relaxed<std::uint64_t>(counter) + 1;
      store_relaxed<std::uint64_t>(reached, number);
      poll_until(ack, number - depth);
    }
    sync_threads();
  }
  copy_all(dst, src, bytes);
  sync_threads();
  if (thread_x() == 0 && flag != 0) store_release<std::uint64_t>(flag, count_on(counter));
}

// One thread. Wait `counter` + 1 of a graph's.
PL_KERNEL void stream_wait_counted(std::uint64_t counter, std::uint64_t word, std::uint64_t reached) {
  const std::uint64_t number = count_on(counter);
  store_relaxed<std::uint64_t>(reached, number);
  poll_until(word, number);
}

// One thread: a put of executor D, by the copy engine, whose addresses these are. The bytes, then `value` in the 64-bit word
// at `flag` (0: none). Its upper half is 0 for the first 2^32 values and written behind the lower one later: until it is
// there the word is too small, and nobody goes on too early. Returns when the source may be used again. An error goes to
// the word at `error`.
PL_KERNEL void stream_dma_put(peerlane_device_ring ring, std::uint64_t dst, std::uint32_t place, std::uint64_t src,
                              std::uint64_t bytes, std::uint64_t flag, std::uint64_t value, std::uint64_t error) {
  post_put(ring, dst, place, src, bytes, flag, value, error);
}

// One thread: the same of a graph, with a value that it counts itself, as stream_put_counted does. Without a flag only the
// bytes and the wait.
PL_KERNEL void stream_dma_put_counted(peerlane_device_ring ring, std::uint64_t dst, std::uint32_t place, std::uint64_t src,
                                      std::uint64_t bytes, std::uint64_t counter, std::uint64_t flag, std::uint64_t ack,
                                      std::uint64_t depth, std::uint64_t reached, std::uint64_t error) {
  if (depth != 0) {
    const std::uint64_t number = load_relaxed<std::uint64_t>(counter) + 1;
    store_relaxed<std::uint64_t>(reached, number);
    poll_until(ack, number - depth);
  }
  post_put(ring, dst, place, src, bytes, flag, flag != 0 ? count_on(counter) : 0, error);
}

PL_EXPORT_KERNEL(stream_put)
PL_EXPORT_KERNEL(stream_put_spread)
PL_EXPORT_KERNEL(stream_wait)
PL_EXPORT_KERNEL(stream_put_counted)
PL_EXPORT_KERNEL(stream_wait_counted)
PL_EXPORT_KERNEL(stream_dma_put)
PL_EXPORT_KERNEL(stream_dma_put_counted)
