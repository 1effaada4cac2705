// SPDX-License-Identifier: Apache-2.0
// The GPU engine's resident kernel: one block is one worker (engine_protocol.hpp). It ends by itself when its lease is over,
// so nothing that waits for the GPU to be idle (cudaFree, module loading, a context's end) waits longer than that.
//
// All loads of data are volatile (past the L1 cache): what other kernels and the CPU wrote before the descriptor is seen.
#include <utility>

#include "engine_protocol.hpp"
#include "kernel_device.cuh"

namespace {

using namespace pl;

constexpr unsigned kPollsBetweenClocks = 16;  // a look at the descriptor takes about 0.4 us; the lease is no shorter than 20
constexpr unsigned kGroupThreads = 32;        // threads that share one short row
constexpr unsigned kLookCycles = 600;         // of a look at the descriptor, about
constexpr unsigned kBatch = 4;                // words of a message that a thread loads before it stores them

// Eight bytes from any address: of the two aligned words around it, none beyond the one that holds the last byte wanted.
PL_DEVICE std::uint64_t load_word(std::uint64_t address, std::uint64_t end) {
  const std::uint64_t aligned = address & ~std::uint64_t{7};
  const unsigned shift = static_cast<unsigned>(address & 7) * 8;
  const auto low = dev::load_relaxed<std::uint64_t>(aligned);
  if (shift == 0) return low;
  const auto high = aligned + 8 < end ? dev::load_relaxed<std::uint64_t>(aligned + 8) : 0;
  return (low >> shift) | (high << (64 - shift));
}

PL_DEVICE dev::vec16 load_16(std::uint64_t address, std::uint64_t end) {
  if ((address & 15) == 0) return dev::load_vec16(address);
  return {load_word(address, end), load_word(address + 8, end)};
}

PL_DEVICE void store_16(std::uint64_t address, dev::vec16 data, bool is_weak) {
  if (is_weak) dev::store_stream_vec16(address, data);
  else dev::store_vec16(address, data);
}

// One row by `count` threads of which this is number `index`.
PL_DEVICE void copy_row(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes, unsigned index, unsigned count,
                        bool is_weak) {
  const std::uint64_t end = src + bytes;
  // Up to the first 16-byte line of the destination, and behind the last one: byte by byte, spread over the threads.
  std::uint64_t head = (16 - (dst & 15)) & 15;
  if (head > bytes) head = bytes;
  for (std::uint64_t at = index; at < head; at += count)
    dev::store_relaxed<std::uint8_t>(dst + at, dev::load_relaxed<std::uint8_t>(src + at));
  const std::uint64_t body_end = head + ((bytes - head) & ~std::uint64_t{15});
  for (std::uint64_t at = body_end + index; at < bytes; at += count)
    dev::store_relaxed<std::uint8_t>(dst + at, dev::load_relaxed<std::uint8_t>(src + at));

  // Four loads are under way before the first is stored: what limits a pull over PCIe is the bytes in flight.
  const std::uint64_t step = std::uint64_t{count} * 16;
  std::uint64_t at = head + std::uint64_t{index} * 16;
  for (; at + 3 * step < body_end; at += 4 * step) {
    const dev::vec16 a = load_16(src + at, end);
    const dev::vec16 b = load_16(src + at + step, end);
    const dev::vec16 c = load_16(src + at + 2 * step, end);
    const dev::vec16 d = load_16(src + at + 3 * step, end);
    store_16(dst + at, a, is_weak);
    store_16(dst + at + step, b, is_weak);
    store_16(dst + at + 2 * step, c, is_weak);
    store_16(dst + at + 3 * step, d, is_weak);
  }
  for (; at < body_end; at += step) store_16(dst + at, load_16(src + at, end), is_weak);
}

// Data lines: every eight bytes with the sequence number beside each four.
PL_DEVICE void send_low_latency(const engine::descriptor& what, unsigned index, unsigned count, bool is_batched) {
  const std::uint64_t src = what.src.low;
  const std::uint64_t end = src + what.src.word;
  const std::uint64_t flag = std::uint64_t{what.src.sequence} << 32;
  const std::uint64_t words = (std::uint64_t{what.src.word} + 7) / 8;
  const auto send = [&](std::uint64_t at, std::uint64_t data) {
    dev::store_vec16(what.dst.low + at * 16, {(data & 0xFFFFFFFFu) | flag, (data >> 32) | flag});
  };
  std::uint64_t at = index;
  if (is_batched && (src & 7) == 0) {
    // All loads of a batch are under way before the first is stored: a thread that waits for each by itself takes one round
    // trip to the memory for every 2 KiB of a message. The guards are uniform but for a message's last words.
    for (; at < words; at += kBatch * count) {
      std::uint64_t data[kBatch];
      PL_UNROLL
      for (unsigned i = 0; i < kBatch; ++i)
        if (at + i * count < words) data[i] = dev::load_data64(src + (at + i * count) * 8);
      PL_UNROLL
      for (unsigned i = 0; i < kBatch; ++i)
        if (at + i * count < words) send(at + i * count, data[i]);
    }
    return;
  }
  for (; at < words; at += count) send(at, load_word(src + at * 8, end));
}

PL_DEVICE void copy_rows(const engine::descriptor& what, unsigned index, unsigned count, bool is_weak) {
  const std::uint64_t bytes = what.src.word;
  const unsigned rows = what.dst.word;
  if (rows == 1) return copy_row(what.dst.low, what.src.low, bytes, index, count, is_weak);
  // Long rows one after another by all threads, short ones side by side by groups.
  const bool is_short = bytes <= 16u * kGroupThreads * 4 && count > kGroupThreads;
  const unsigned groups = is_short ? count / kGroupThreads : 1;
  const unsigned group = is_short ? index / kGroupThreads : 0;
  const unsigned lane = is_short ? index % kGroupThreads : index;
  const unsigned lanes = is_short ? kGroupThreads : count;
  for (unsigned row = group; row < rows; row += groups)
    copy_row(what.dst.low + row * what.dst_pitch.low, what.src.low + row * what.src_pitch.low, bytes, lane, lanes, is_weak);
}

PL_DEVICE void copy_list(const engine::descriptor& what, unsigned index, unsigned count, bool is_weak) {
  const unsigned lanes = count > kGroupThreads ? kGroupThreads : count;
  for (unsigned entry = index / lanes; entry < what.dst.word; entry += count / lanes) {
    const std::uint64_t at = what.src.low + std::uint64_t{entry} * sizeof(engine::list_entry);
    const dev::vec16 where = dev::load_vec16(at);
    const dev::vec16 size = dev::load_vec16(at + 16);
    copy_row(where.high, where.low, size.low, index % lanes, lanes, is_weak);
  }
}

PL_DEVICE engine::quarter as_quarter(dev::vec16 v) {
  return {v.low, static_cast<std::uint32_t>(v.high), static_cast<std::uint32_t>(v.high >> 32)};
}

struct look {
  dev::vec16 quarters[4];
};
PL_DEVICE look look_at(std::uint64_t slot) {
  return {{dev::load_vec16(slot), dev::load_vec16(slot + 16), dev::load_vec16(slot + 32), dev::load_vec16(slot + 48)}};
}
PL_DEVICE bool holds(const look& seen, std::uint32_t wanted) {
  bool all = true;
  PL_UNROLL
  for (int i = 0; i < 4; ++i) all = all && static_cast<std::uint32_t>(seen.quarters[i].high >> 32) == wanted;
  return all;
}

// Takes what the look has found, or looks again.
PL_DEVICE bool take_or_look(look& flying, std::uint64_t slot, std::uint32_t wanted, engine::descriptor& out) {
  if (holds(flying, wanted)) {
    out = {as_quarter(flying.quarters[0]), as_quarter(flying.quarters[1]), as_quarter(flying.quarters[2]),
           as_quarter(flying.quarters[3])};
    return true;
  }
  flying = look_at(slot);
  dev::let_others_run();
  return false;
}

PL_DEVICE look look_later(std::uint64_t slot, unsigned cycles) {
  const std::uint64_t begin = dev::clock_cycles();
  while (cycles != 0 && dev::clock_cycles() - begin < cycles) {}
  return look_at(slot);
}

// Until the descriptor with this number is there, or the lease is over: false. With several looks under way at a time,
// evenly apart, what the CPU writes is met by the next look sooner than one look takes. Indices as a pack: with a loop's
// variable the looks would lie in the thread's memory instead of its registers.
template <std::size_t... kIndex>
PL_DEVICE bool await_descriptor(std::uint64_t slot, std::uint32_t wanted, std::uint64_t begin_ns, std::uint64_t lease_ns,
                                unsigned turn, engine::descriptor& out, std::index_sequence<kIndex...>) {
  look flying[] = {look_later(slot, kIndex == 0 ? 0 : kLookCycles / sizeof...(kIndex))...};
  for (unsigned polls = turn; !(take_or_look(flying[kIndex], slot, wanted, out) || ...);)
    // Only after an empty look: what the CPU had sent in time is done.
    if (++polls % kPollsBetweenClocks == 0 && dev::global_timer_ns() - begin_ns >= lease_ns) return false;
  return true;
}

PL_DEVICE bool await_descriptor(unsigned looks, std::uint64_t slot, std::uint32_t wanted, std::uint64_t begin_ns,
                                std::uint64_t lease_ns, unsigned turn, engine::descriptor& out) {
  if (looks == 1) return await_descriptor(slot, wanted, begin_ns, lease_ns, turn, out, std::make_index_sequence<1>{});
  if (looks == 2) return await_descriptor(slot, wanted, begin_ns, lease_ns, turn, out, std::make_index_sequence<2>{});
  return await_descriptor(slot, wanted, begin_ns, lease_ns, turn, out, std::make_index_sequence<4>{});
}

PL_DEVICE std::uint32_t next_sequence(std::uint32_t last) { return last + 1 == 0 ? 1 : last + 1; }

}  // namespace

PL_KERNEL void gpu_engine(std::uint64_t control, std::uint64_t status, std::uint32_t generation, std::uint64_t lease_ns,
                          std::uint32_t tuning) {
  using namespace pl;
  // Two, by turns: a slow thread may still read the last one while thread 0 receives the next.
  auto* const received = static_cast<engine::descriptor*>(dev::shared_memory());
  const unsigned worker = dev::block_x();
  const unsigned me = dev::thread_x();
  const unsigned threads = dev::block_dim_x();
  const std::uint64_t slot = control + engine::kDescriptorsAt + worker * sizeof(engine::descriptor);
  const std::uint64_t state = control + engine::kStatesAt + worker * sizeof(engine::worker_state);
  const std::uint64_t line = status + worker * sizeof(engine::status_line);
  const std::uint64_t begin_ns = me == 0 ? dev::global_timer_ns() : 0;
  const unsigned looks = tuning & engine::tune_looks;
  const bool is_weak = (tuning & engine::tune_weak_stores) != 0;
  std::uint32_t sequence = me == 0 ? dev::load_relaxed<std::uint32_t>(state) : 0;
  if (me == 0) dev::store_relaxed<std::uint32_t>(line + 4, generation);  // hello

  for (unsigned turn = 0;; ++turn) {
    engine::descriptor& now = received[turn & 1];
    if (me == 0) {
      const std::uint32_t wanted = next_sequence(sequence);
      engine::descriptor seen{};
      bool leaving = !await_descriptor(looks, slot, wanted, begin_ns, lease_ns, turn, seen);
      // Twice the lease is the end in any case: a CPU that never stops sending has to wait for the next generation.
      if (!leaving && turn % kPollsBetweenClocks == 0 && dev::global_timer_ns() - begin_ns >= 2 * lease_ns) leaving = true;
      if (leaving) {
        seen.src_pitch.word = engine::op_leave;
      } else {
        sequence = wanted;
#if defined(__SANITIZE_THREAD__)
        (void)dev::load_acquire<std::uint32_t>(line + 16);  // status_line::told
#endif
      }
      now = seen;
    }
    dev::sync_threads();
    const engine::descriptor what = now;
    const std::uint32_t operation = what.src_pitch.word;
    if (operation == engine::op_leave) break;
    if (operation == engine::op_low_latency) {
      send_low_latency(what, me, threads, (tuning & engine::tune_batches) != 0);
      continue;
    }
    if (operation == engine::op_list) copy_list(what, me, threads, is_weak);
    else copy_rows(what, me, threads, is_weak);
    dev::sync_threads();
    if (me == 0) {
      // Behind the other threads' stores too: the barrier made them ours.
      if ((tuning & engine::tune_release) != 0) {
        dev::store_release<std::uint32_t>(line, what.src.sequence);
      } else {
        dev::fence_system();
        dev::store_relaxed<std::uint32_t>(line, what.src.sequence);
      }
    }
  }
  if (me == 0) {
    dev::store_relaxed<std::uint32_t>(state, sequence);
    dev::store_relaxed<std::uint32_t>(line + 12, sequence);
    dev::fence_system();  // everything this block has stored comes before `left`
    dev::store_relaxed<std::uint32_t>(line + 8, generation);
  }
}
PL_EXPORT_KERNEL(gpu_engine)
