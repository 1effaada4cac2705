// SPDX-License-Identifier: Apache-2.0
// What device_put_bench measures: kernels that start transfers. Times are clock cycles, so that 1 us is resolved.
#include "cuda/device_port.cuh"

namespace pd = peerlane::device;
using ring_t = peerlane_device_ring;
using window_t = peerlane_device_window;

namespace {
PL_DEVICE void store64(std::uint64_t address, std::uint64_t value) { pl::dev::store_relaxed<std::uint64_t>(address, value); }
PL_DEVICE unsigned thread_number() { return pl::dev::block_x() * pl::dev::block_dim_x() + pl::dev::thread_x(); }
// The block's ring is its number modulo `rings`, whose handles lie at `ring_table`.
PL_DEVICE ring_t ring_of_block(std::uint64_t ring_table, unsigned rings) {
  ring_t ring;
  const std::uint64_t place = ring_table + pl::dev::block_x() % rings * sizeof(ring_t);
  ring.control = pl::dev::load_relaxed<std::uint64_t>(place);
  ring.segments = pl::dev::load_relaxed<std::uint64_t>(place + 8);
  ring.completed = pl::dev::load_relaxed<std::uint64_t>(place + 16);
  ring.spare = pl::dev::load_relaxed<std::uint64_t>(place + 24);
  ring.timeout_ns = pl::dev::load_relaxed<std::uint64_t>(place + 32);
  ring.count = pl::dev::load_relaxed<std::uint32_t>(place + 40);
  return ring;
}
PL_DEVICE std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}
}  // namespace

// One thread, one after the other: put_signal, and the wait for the word, which lies in memory of this GPU. `how`: 0 the
// signal of put_signal, 1 the same without flush, 2 the ticket of a put, 3 of a flushed put; 4, 5, 6: 0, 1, 2 by the thread
// that has the ring for itself. Cycles of each into `times`.
PL_KERNEL void time_puts(ring_t ring, window_t destination, window_t source, std::uint64_t bytes, window_t words,
                         unsigned first, unsigned rounds, unsigned mode, std::uint64_t times) {
  pd::owned_ring mine{};
  if (mode >= 4 && pd::own(ring, mine) != 0) rounds = 0;
  for (unsigned i = 0; i < rounds; ++i) {
    const std::uint64_t begin = pl::dev::clock_cycles();
    long long code = 0;
    if (mode == 6) {
      code = pd::put(mine, destination, 0, source, 0, bytes);
      if (code > 0) code = pd::wait(mine, code);
    } else if (mode >= 4) {
      code = pd::put_signal(mine, destination, 0, source, 0, bytes, words, 0, first + i,
                            mode == 5 ? PEERLANE_DEVICE_UNFLUSHED : 0);
      if (code > 0) code = pd::wait_signal(words, 0, first + i, ring.timeout_ns);
    } else if (mode < 2) {
      code = pd::put_signal(ring, destination, 0, source, 0, bytes, words, 0, first + i,
                            mode == 1 ? PEERLANE_DEVICE_UNFLUSHED : 0);
      if (code > 0) code = pd::wait_signal(words, 0, first + i, ring.timeout_ns);
    } else {
      code = pd::put(ring, destination, 0, source, 0, bytes, mode == 3 ? PEERLANE_DEVICE_FLUSHED : 0);
      if (code > 0) code = pd::wait(ring, code);
    }
    store64(times + i * 8, code == 0 ? pl::dev::clock_cycles() - begin : static_cast<std::uint64_t>(code));
  }
  if (mode >= 4 && rounds != 0) pd::give_back(mine);
}
PL_EXPORT_KERNEL(time_puts)

// Where the time of a put goes: cycles of taking a ticket, of writing the segment, of fencing and handing it over, of the
// engine. Four words a round.
PL_KERNEL void time_steps(ring_t ring, window_t destination, window_t source, std::uint64_t bytes, unsigned rounds,
                          std::uint64_t times) {
  for (unsigned i = 0; i < rounds; ++i) {
    pd::detail::segment made;
    pd::detail::make_copy(made, destination, 0, source, 0, bytes, 0);
    const std::uint64_t begin = pl::dev::clock_cycles();
    unsigned long long before = 0;
    if (pd::detail::take_tickets(ring, 1, before) != 0) return;
    const std::uint64_t taken = pl::dev::clock_cycles();
    const unsigned ticket = static_cast<unsigned>(before + 1);
    pd::detail::write_segment(ring, ticket, made);
    const std::uint64_t written = pl::dev::clock_cycles();
    pd::detail::commit(ring, ticket, false);
    const std::uint64_t handed = pl::dev::clock_cycles();
    if (pd::wait(ring, static_cast<long long>(before + 1)) != 0) return;
    store64(times + i * 32, taken - begin);
    store64(times + i * 32 + 8, written - taken);
    store64(times + i * 32 + 16, handed - written);
    store64(times + i * 32 + 24, pl::dev::clock_cycles() - handed);
  }
}
PL_EXPORT_KERNEL(time_steps)

// Every thread (is_each 1: every warp together, each of its threads; 2: the one thread of the ring, for itself) puts `count`
// pieces of `bytes`, all of them side by side. Answers: the last one's, or an error.
PL_KERNEL void many_puts(std::uint64_t ring_table, unsigned rings, window_t destination, window_t source,
                         std::uint64_t bytes, unsigned count, unsigned is_each, std::uint64_t answers) {
  const ring_t ring = ring_of_block(ring_table, rings);
  long long ticket = 0;
  pd::owned_ring mine{};
  if (is_each == 2) ticket = pd::own(ring, mine);
  for (unsigned i = 0; i < count && ticket >= 0; ++i) {
    const std::uint64_t offset = (thread_number() + std::uint64_t{i} * pl::dev::block_dim_x() * pl::dev::grid_dim_x()) *
                                 bytes % (source.size_bytes - bytes + 1) / 64 * 64;
    ticket = is_each == 2   ? pd::put(mine, destination, offset, source, offset, bytes)
             : is_each != 0 ? pd::put_each(ring, destination, offset, source, offset, bytes)
                            : pd::put(ring, destination, offset, source, offset, bytes);
  }
  if (is_each == 2) pd::give_back(mine);
  store64(answers + thread_number() * 8, static_cast<std::uint64_t>(ticket < 0 ? ticket : pd::quiet(ring)));
}
PL_EXPORT_KERNEL(many_puts)

// One warp posts 32 puts a round and ends without waiting for any: no multiprocessor is held while the bytes move.
PL_KERNEL void burst_of_puts(ring_t ring, window_t destination, window_t source, std::uint64_t bytes, unsigned rounds) {
  for (unsigned i = 0; i < rounds; ++i) {
    const std::uint64_t offset =
        (thread_number() + std::uint64_t{i} * pl::dev::block_dim_x()) * bytes % (source.size_bytes - bytes + 1) / 64 * 64;
    if (pd::put_each(ring, destination, offset, source, offset, bytes) < 0) return;
  }
}
PL_EXPORT_KERNEL(burst_of_puts)

// Litmus of many blocks at once, which share rings: each puts pieces of random sizes up to `most` from its slot of one
// window into its slot of the other, with a signal behind them, and looks at every byte as soon as it sees the word. Counts
// as litmus does; [3]: bytes.
PL_KERNEL void litmus_many(std::uint64_t ring_table, unsigned rings, window_t destination, window_t source,
                           std::uint64_t most, window_t words, unsigned first, unsigned rounds, unsigned flags,
                           std::uint64_t found) {
  const ring_t ring = ring_of_block(ring_table, rings);
  const unsigned self = pl::dev::thread_x(), threads = pl::dev::block_dim_x();
  const std::uint64_t slot = pl::dev::block_x() * most, word = pl::dev::block_x() * 64;
  std::uint64_t state = mix(pl::dev::block_x() + 1), moved = 0;
  for (unsigned i = 0; i < rounds; ++i) {
    const unsigned round = first + i;
    state = mix(state + 1);
    const std::uint64_t bytes = (state % (most / 4) + 1) * 4, offset = slot + (state >> 32) % ((most - bytes) / 4 + 1) * 4;
    for (std::uint64_t place = offset + self * 4; place < offset + bytes; place += threads * 4)
      pl::dev::store_relaxed<std::uint32_t>(source.address + place, round);
    pd::put_signal_block(ring, destination, offset, source, offset, bytes, words, word, round, flags);
    if (pd::wait_signal_block(words, word, round, ring.timeout_ns) != 0) {
      pl::dev::atomic_add<std::uint64_t>(found + 16, 1);
      return;
    }
    bool is_old = false;
    for (std::uint64_t place = offset + self * 4; place < offset + bytes; place += threads * 4)
      is_old |= pl::dev::load_relaxed<std::uint32_t>(destination.address + place) != round;
    if (is_old) pl::dev::atomic_add<std::uint64_t>(found, 1);
    moved += bytes;
    pl::dev::sync_threads();
  }
  if (self == 0) pl::dev::atomic_add<std::uint64_t>(found + 24, moved);
}
PL_EXPORT_KERNEL(litmus_many)

// Each thread fills its slot of `to` from `from` in pieces of random sizes up to `most`, in random order of the two windows'
// alignment, until all is moved: the host compares every byte. `puts` counts them.
PL_KERNEL void random_puts(ring_t ring, window_t destination, window_t source, std::uint64_t slot_bytes, unsigned most,
                           std::uint64_t seed, std::uint64_t puts, std::uint64_t answers) {
  const std::uint64_t base = thread_number() * slot_bytes;
  std::uint64_t state = mix(seed + thread_number()), done = 0, made = 0;
  long long ticket = 0;
  while (done < slot_bytes && ticket >= 0) {
    state = mix(state + 1);
    std::uint64_t piece = state % most + 1;
    if (piece > slot_bytes - done) piece = slot_bytes - done;
    ticket = pd::put(ring, destination, base + done, source, base + done, piece);
    done += piece;
    ++made;
  }
  store64(answers + thread_number() * 8, static_cast<std::uint64_t>(ticket < 0 ? ticket : pd::quiet(ring)));
  pl::dev::atomic_add<std::uint64_t>(puts, made);
}
PL_EXPORT_KERNEL(random_puts)

// Litmus: fills `from` with the round, puts it with a signal, and after the word was seen looks at all of `to`, which
// kernels must reach. Counts rounds that saw old words, by first seeing them: [0] any, [1] still old 20 us later.
PL_KERNEL void litmus(ring_t ring, window_t destination, window_t source, std::uint64_t bytes, window_t words,
                      unsigned first, unsigned rounds, unsigned flags, std::uint64_t found) {
  const unsigned self = pl::dev::thread_x(), threads = pl::dev::block_dim_x();
  for (unsigned i = 0; i < rounds; ++i) {
    const unsigned round = first + i;
    for (std::uint64_t place = self * 4; place < bytes; place += threads * 4)
      pl::dev::store_relaxed<std::uint32_t>(source.address + place, round);
    pd::put_signal_block(ring, destination, 0, source, 0, bytes, words, 0, round, flags);
    if (pd::wait_signal_block(words, 0, round, ring.timeout_ns) != 0) {
      pl::dev::atomic_add<std::uint64_t>(found + 16, 1);
      return;
    }
    bool is_old = false;
    for (std::uint64_t place = self * 4; place < bytes; place += threads * 4)
      is_old |= pl::dev::load_relaxed<std::uint32_t>(destination.address + place) != round;
    if (is_old) {
      pl::dev::atomic_add<std::uint64_t>(found, 1);
      const std::uint64_t begin = pl::dev::global_timer_ns();
      while (pl::dev::global_timer_ns() - begin < 20'000) {}
      for (std::uint64_t place = self * 4; place < bytes; place += threads * 4)
        if (pl::dev::load_relaxed<std::uint32_t>(destination.address + place) != round) {
          pl::dev::atomic_add<std::uint64_t>(found + 8, 1);
          break;
        }
    }
    pl::dev::sync_threads();
  }
}
PL_EXPORT_KERNEL(litmus)

// Posts `count` puts with a signal into host memory, `gap_ns` between them; the CPU looks at bytes and words.
PL_KERNEL void signal_host(ring_t ring, window_t destination, window_t source, std::uint64_t bytes, window_t words,
                           window_t answers, unsigned first, unsigned rounds, unsigned flags) {
  for (unsigned i = 0; i < rounds; ++i) {
    const unsigned round = first + i;
    for (std::uint64_t place = 0; place < bytes; place += 4)
      pl::dev::store_relaxed<std::uint32_t>(source.address + place, round);
    pd::put_signal(ring, destination, 0, source, 0, bytes, words, 0, round, flags);
    if (pd::wait_signal(answers, 0, round, ring.timeout_ns) != 0) return;
  }
}
PL_EXPORT_KERNEL(signal_host)

// Work for all multiprocessors that has nothing to do with transfers: multiplications until the CPU says stop, counted.
PL_KERNEL void busy(std::uint64_t stop, std::uint64_t counts) {
  std::uint64_t done = 0;
  unsigned a = thread_number() * 2654435761u + 1, b = a ^ 0x9e3779b9u;
  for (;;) {
    for (unsigned i = 0; i < 4096; ++i) {
      a = a * b + i;
      b = b * 1664525u + a;
    }
    ++done;
    if (pl::dev::load_relaxed<std::uint32_t>(stop) != 0) break;
  }
  if (a == b) ++done;
  pl::dev::atomic_add<std::uint64_t>(counts, done);
}
PL_EXPORT_KERNEL(busy)

// Cycles in `ns` nanoseconds, under load as the others are.
PL_KERNEL void count_cycles(std::uint64_t ns, std::uint64_t out) {
  const std::uint64_t begin_ns = pl::dev::global_timer_ns(), begin = pl::dev::clock_cycles();
  while (pl::dev::global_timer_ns() - begin_ns < ns) {}
  const std::uint64_t cycles = pl::dev::clock_cycles() - begin, taken_ns = pl::dev::global_timer_ns() - begin_ns;
  store64(out, cycles);
  store64(out + 8, taken_ns);
}
PL_EXPORT_KERNEL(count_cycles)
