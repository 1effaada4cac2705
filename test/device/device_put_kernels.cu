// SPDX-License-Identifier: Apache-2.0
// Kernels that start transfers (include/peerlane/device.cuh). Answers go to memory that the test reads.
#include "cuda/device_port.cuh"

namespace pd = peerlane::device;
using ring_t = peerlane_device_ring;
using window_t = peerlane_device_window;

namespace {

// A place for each thread's answer.
PL_DEVICE void answer(std::uint64_t answers, long long value) {
  const unsigned place = pl::dev::block_x() * pl::dev::block_dim_x() + pl::dev::thread_x();
  pl::dev::store_release<std::uint64_t>(answers + place * 8, static_cast<std::uint64_t>(value));
}

PL_DEVICE std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

}  // namespace

// One put and the wait for it.
PL_KERNEL void put_once(ring_t ring, window_t destination, std::uint64_t destination_offset, window_t source,
                        std::uint64_t source_offset, std::uint64_t bytes, unsigned flags, std::uint64_t answers) {
  const long long ticket = pd::put(ring, destination, destination_offset, source, source_offset, bytes, flags);
  answer(answers, ticket < 0 ? ticket : pd::wait(ring, ticket));
}
PL_EXPORT_KERNEL(put_once)

// Each thread owns `slot_bytes` of both windows, and puts pieces of random sizes of it one behind the other, until all is
// moved. Then all that was posted is waited for.
PL_KERNEL void put_pieces(ring_t ring, window_t destination, window_t source, std::uint64_t slot_bytes, std::uint64_t seed,
                          std::uint64_t answers) {
  const std::uint64_t self = pl::dev::block_x() * pl::dev::block_dim_x() + pl::dev::thread_x();
  std::uint64_t state = mix(seed + self), done = 0;
  long long ticket = 0;
  while (done < slot_bytes && ticket >= 0) {
    state = mix(state + 1);
    std::uint64_t piece = state % 257 + 1;
    if (piece > slot_bytes - done) piece = slot_bytes - done;
    ticket = pd::put(ring, destination, self * slot_bytes + done, source, self * slot_bytes + done, piece);
    done += piece;
  }
  answer(answers, ticket < 0 ? ticket : pd::quiet(ring));
}
PL_EXPORT_KERNEL(put_pieces)

// The same by put_each, a fixed piece at a time.
PL_KERNEL void put_each_piece(ring_t ring, window_t destination, window_t source, std::uint64_t slot_bytes,
                              std::uint64_t piece, std::uint64_t answers) {
  const std::uint64_t self = pl::dev::block_x() * pl::dev::block_dim_x() + pl::dev::thread_x();
  long long ticket = 0;
  for (std::uint64_t done = 0; done < slot_bytes && ticket >= 0; done += piece)
    ticket = pd::put_each(ring, destination, self * slot_bytes + done, source, self * slot_bytes + done, piece,
                          PEERLANE_DEVICE_FLUSHED);
  answer(answers, ticket < 0 ? ticket : pd::wait(ring, ticket));
}
PL_EXPORT_KERNEL(put_each_piece)

// The segments of put_each on a GPU, whose warps have 32 threads: two puts in each.
PL_KERNEL void put_pairs(ring_t ring, window_t destination, window_t source, std::uint64_t piece, unsigned count,
                         unsigned flags, std::uint64_t answers) {
  long long code = 0;
  for (unsigned i = 0; i < count && code == 0; ++i) {
    pd::detail::segment two[2];
    for (unsigned k = 0; k < 2 && code == 0; ++k) {
      const std::uint64_t offset = (2 * i + k) * piece;
      code = pd::detail::make_copy(two[k], destination, offset, source, offset, piece - k * 3, flags);
    }
    unsigned long long before = 0;
    if (code == 0) code = pd::detail::take_tickets(ring, 1, before);
    if (code != 0) break;
    const auto ticket = static_cast<unsigned>(before + 1);
    pd::detail::write_pair(ring, ticket, two[0], two[1]);
    pd::detail::commit(ring, ticket, false);
    code = (flags & PEERLANE_DEVICE_FLUSHED) != 0 ? pd::wait(ring, ticket) : 0;
  }
  answer(answers, code < 0 ? code : pd::quiet(ring));
}
PL_EXPORT_KERNEL(put_pairs)

// A producer: writes round r into its data, puts it with a signal, waits until a consumer has answered r, `rounds` times.
PL_KERNEL void produce(ring_t ring, window_t data, window_t remote, window_t words, unsigned rounds, std::uint64_t answers) {
  long long code = 0;
  for (unsigned round = 1; round <= rounds && code >= 0; ++round) {
    for (std::uint64_t place = 0; place < data.size_bytes; place += 4)
      pl::dev::store_relaxed<std::uint32_t>(data.address + place, round);
    code = pd::put_signal(ring, remote, 0, data, 0, data.size_bytes, words, 0, round);
    if (code >= 0) code = pd::wait_signal(words, 128, round, ring.timeout_ns);
  }
  answer(answers, code);
}
PL_EXPORT_KERNEL(produce)

// The consumer on the GPU: how many words were not the round's when the signal was seen.
PL_KERNEL void consume(window_t remote, window_t words, unsigned rounds, std::uint64_t timeout_ns, std::uint64_t answers) {
  long long wrong = 0;
  for (unsigned round = 1; round <= rounds && wrong >= 0; ++round) {
    if (const int code = pd::wait_signal(words, 0, round, timeout_ns)) {
      wrong = code;
      break;
    }
    for (std::uint64_t place = 0; place < remote.size_bytes; place += 4)
      wrong += pl::dev::load_relaxed<std::uint32_t>(remote.address + place) != round ? 1 : 0;
    pl::dev::fence_system();
    pl::dev::store_release<std::uint32_t>(words.address + 128, round);
  }
  answer(answers, wrong);
}
PL_EXPORT_KERNEL(consume)

// Chains: memory A to B, B to C, C back to A, by one ring, with what `how` says between: 0 fence, 1 the flag, 2 nothing.
PL_KERNEL void chain(ring_t ring, window_t memory, std::uint64_t bytes, unsigned rounds, unsigned mode,
                     std::uint64_t answers) {
  long long code = 0;
  const unsigned flags = mode == 1 ? PEERLANE_DEVICE_ORDERED : 0;
  for (unsigned step = 0; step < rounds * 3 && code >= 0; ++step) {
    code = pd::put(ring, memory, (step + 1) % 3 * bytes, memory, step % 3 * bytes, bytes, flags);
    if (mode == 0 && code >= 0) code = pd::fence(ring);
  }
  answer(answers, code < 0 ? code : pd::quiet(ring));
}
PL_EXPORT_KERNEL(chain)

// A to B and B to C, behind a segment that is written last: the engine gets all three at once. `mode` as in chain.
PL_KERNEL void held_chain(ring_t ring, window_t memory, std::uint64_t bytes, unsigned mode, std::uint64_t answers) {
  const unsigned flags = mode == 1 ? PEERLANE_DEVICE_ORDERED : 0;
  unsigned long long before = 0;
  long long code = pd::detail::take_tickets(ring, 1, before);
  if (code == 0) code = pd::put(ring, memory, bytes, memory, 0, bytes, flags);
  if (mode == 0 && code >= 0) code = pd::fence(ring);
  if (code >= 0) code = pd::put(ring, memory, 2 * bytes, memory, bytes, bytes, flags);
  const bool is_held = pd::detail::poll_progress(ring).completed <= static_cast<std::uint32_t>(before);
  pd::detail::segment empty;
  empty.end_flags = pd::detail::kReleaseWord;
  const auto ticket = static_cast<unsigned>(before + 1);
  pd::detail::write_segment(ring, ticket, empty);
  pd::detail::commit(ring, ticket, true);
  const long long ended = pd::quiet(ring);
  answer(answers, code < 0 ? code : is_held ? ended : 1);
}
PL_EXPORT_KERNEL(held_chain)

// All threads of a block write, one call moves it.
PL_KERNEL void put_as_block(ring_t ring, window_t destination, window_t source, window_t words, unsigned value,
                            std::uint64_t answers) {
  const std::uint64_t bytes = std::uint64_t{pl::dev::block_dim_x()} * 4, base = pl::dev::block_x() * bytes;
  pl::dev::store_relaxed<std::uint32_t>(source.address + base + pl::dev::thread_x() * 4, value + pl::dev::thread_x());
  const long long ticket =
      pd::put_signal_block(ring, destination, base, source, base, bytes, words, pl::dev::block_x() * 4, value);
  const long long code = pd::quiet_block(ring);
  answer(answers, ticket < 0 ? ticket : code);
}
PL_EXPORT_KERNEL(put_as_block)

// As put_pieces, by one thread that has the ring for itself; then by the ring that is everybody's again.
PL_KERNEL void put_pieces_alone(ring_t ring, window_t destination, window_t source, std::uint64_t bytes,
                                std::uint64_t answers) {
  pd::owned_ring mine;
  long long code = pd::own(ring, mine);
  std::uint64_t state = 1, done = 0;
  while (done < bytes / 2 && code >= 0) {
    state = mix(state + 1);
    const std::uint64_t piece = state % 257 + 1;
    code = pd::put(mine, destination, done, source, done, piece);
    done += piece;
  }
  if (code >= 0) code = pd::quiet(mine);
  pd::give_back(mine);
  if (code == 0) code = pd::put(ring, destination, done, source, done, bytes - done);
  answer(answers, code < 0 ? code : pd::quiet(ring));
}
PL_EXPORT_KERNEL(put_pieces_alone)

// Whether a ring can be had alone.
PL_KERNEL void try_own(ring_t ring, std::uint64_t answers) {
  pd::owned_ring mine;
  answer(answers, pd::own(ring, mine));
}
PL_EXPORT_KERNEL(try_own)

// Takes a ticket and never writes its segment, as a thread that ends in the middle does.
PL_KERNEL void abandon(ring_t ring, std::uint64_t answers) {
  answer(answers, static_cast<long long>(pd::port::add64(ring.control + PEERLANE_DEVICE_TICKETS_AT, 1)));
}
PL_EXPORT_KERNEL(abandon)

// Waits for a word that never comes.
PL_KERNEL void wait_in_vain(window_t words, std::uint64_t offset, std::uint64_t timeout_ns, std::uint64_t answers) {
  answer(answers, pd::wait_signal(words, offset, 1, timeout_ns));
}
PL_EXPORT_KERNEL(wait_in_vain)
