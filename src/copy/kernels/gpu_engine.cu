// SPDX-License-Identifier: Apache-2.0
// The GPU engine's resident kernel: one block is one worker (engine_protocol.hpp). It ends by itself when its lease is
// over, so nothing that waits for an idle GPU (cudaFree, module loading, the end of a context) waits longer than that.
//
// All loads of data are volatile (they bypass the L1 cache), so they see what other kernels and the CPU wrote before
// the descriptor.
#include "copy/engine_protocol.hpp"
#include "cuda/kernel_device.cuh"

namespace {

using namespace pl;

constexpr unsigned kPollsBetweenClocks = 16;  // reading the descriptor takes about 0.4 us; the lease is at least 20
constexpr unsigned kGroupThreads = 32;        // threads that share one short row

// Eight bytes from any address, out of the two aligned words around it; reads no word beyond the one with the last byte
// wanted.
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

// Copies one row with `count` threads, of which this is number `index`.
PL_DEVICE void copy_row(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes, unsigned index, unsigned count) {
  const std::uint64_t end = src + bytes;
  // Byte by byte, spread over the threads, up to the first 16-byte line of the destination and after the last one.
  std::uint64_t head = (16 - (dst & 15)) & 15;
  if (head > bytes) head = bytes;
  for (std::uint64_t position = index; position < head; position += count)
    dev::store_relaxed<std::uint8_t>(dst + position, dev::load_relaxed<std::uint8_t>(src + position));
  const std::uint64_t body_end = head + ((bytes - head) & ~std::uint64_t{15});
  for (std::uint64_t position = body_end + index; position < bytes; position += count)
    dev::store_relaxed<std::uint8_t>(dst + position, dev::load_relaxed<std::uint8_t>(src + position));

  // Four loads are issued before the first store: reading over PCIe is limited by the bytes in flight.
  const std::uint64_t step = std::uint64_t{count} * 16;
  std::uint64_t position = head + std::uint64_t{index} * 16;
  for (; position + 3 * step < body_end; position += 4 * step) {
    const dev::vec16 a = load_16(src + position, end);
    const dev::vec16 b = load_16(src + position + step, end);
    const dev::vec16 c = load_16(src + position + 2 * step, end);
    const dev::vec16 d = load_16(src + position + 3 * step, end);
    dev::store_vec16(dst + position, a);
    dev::store_vec16(dst + position + step, b);
    dev::store_vec16(dst + position + 2 * step, c);
    dev::store_vec16(dst + position + 3 * step, d);
  }
  for (; position < body_end; position += step) dev::store_vec16(dst + position, load_16(src + position, end));
}

// Data lines: each eight bytes of data with the sequence number beside each four.
PL_DEVICE void send_low_latency(const engine::descriptor& command, unsigned index, unsigned count) {
  const std::uint64_t src = command.src.low;
  const std::uint64_t end = src + command.src.word;
  const std::uint64_t flag = std::uint64_t{command.src.sequence} << 32;
  const std::uint64_t words = (std::uint64_t{command.src.word} + 7) / 8;
  for (std::uint64_t position = index; position < words; position += count) {
    const std::uint64_t data = load_word(src + position * 8, end);
    dev::store_vec16(command.dst.low + position * 16, {(data & 0xFFFFFFFFu) | flag, (data >> 32) | flag});
  }
}

PL_DEVICE void copy_rows(const engine::descriptor& command, unsigned index, unsigned count) {
  const std::uint64_t bytes = command.src.word;
  const unsigned rows = command.dst.word;
  if (rows == 1) return copy_row(command.dst.low, command.src.low, bytes, index, count);
  // Long rows one after another by all threads; short ones side by side by groups.
  const bool is_short = bytes <= 16u * kGroupThreads * 4 && count > kGroupThreads;
  const unsigned groups = is_short ? count / kGroupThreads : 1;
  const unsigned group = is_short ? index / kGroupThreads : 0;
  const unsigned lane = is_short ? index % kGroupThreads : index;
  const unsigned lanes = is_short ? kGroupThreads : count;
  for (unsigned row = group; row < rows; row += groups)
    copy_row(command.dst.low + row * command.dst_pitch.low, command.src.low + row * command.src_pitch.low, bytes, lane,
             lanes);
}

PL_DEVICE void copy_list(const engine::descriptor& command, unsigned index, unsigned count) {
  const unsigned lanes = count > kGroupThreads ? kGroupThreads : count;
  for (unsigned entry = index / lanes; entry < command.dst.word; entry += count / lanes) {
    const std::uint64_t position = command.src.low + std::uint64_t{entry} * sizeof(engine::list_entry);
    const dev::vec16 addresses = dev::load_vec16(position);
    const dev::vec16 size = dev::load_vec16(position + 16);
    copy_row(addresses.high, addresses.low, size.low, index % lanes, lanes);
  }
}

PL_DEVICE engine::quarter to_quarter(dev::vec16 v) {
  return {v.low, static_cast<std::uint32_t>(v.high), static_cast<std::uint32_t>(v.high >> 32)};
}

PL_DEVICE bool poll(std::uint64_t address, std::uint32_t wanted, engine::descriptor& out) {
  const dev::vec16 a = dev::load_vec16(address);
  const dev::vec16 b = dev::load_vec16(address + 16);
  const dev::vec16 c = dev::load_vec16(address + 32);
  const dev::vec16 d = dev::load_vec16(address + 48);
  out.src = to_quarter(a);
  out.dst = to_quarter(b);
  out.src_pitch = to_quarter(c);
  out.dst_pitch = to_quarter(d);
  return out.src.sequence == wanted && out.dst.sequence == wanted && out.src_pitch.sequence == wanted &&
         out.dst_pitch.sequence == wanted;
}

PL_DEVICE std::uint32_t next_sequence(std::uint32_t last) { return last + 1 == 0 ? 1 : last + 1; }

}  // namespace

PL_KERNEL void gpu_engine(std::uint64_t control, std::uint64_t status, std::uint32_t generation, std::uint64_t lease_ns) {
  using namespace pl;
  // Two, used in turns: a slow thread may still read the last one while thread 0 receives the next.
  auto* const received = static_cast<engine::descriptor*>(dev::shared_memory());
  const unsigned worker = dev::block_x();
  const unsigned me = dev::thread_x();
  const unsigned threads = dev::block_dim_x();
  const std::uint64_t slot = control + engine::kDescriptorsAt + worker * sizeof(engine::descriptor);
  const std::uint64_t state = control + engine::kStatesAt + worker * sizeof(engine::worker_state);
  const std::uint64_t line = status + worker * sizeof(engine::status_line);
  const std::uint64_t begin_ns = me == 0 ? dev::global_timer_ns() : 0;
  std::uint32_t sequence = me == 0 ? dev::load_relaxed<std::uint32_t>(state) : 0;
  if (me == 0) dev::store_relaxed<std::uint32_t>(line + 4, generation);  // hello

  for (unsigned turn = 0;; ++turn) {
    engine::descriptor& now = received[turn & 1];
    if (me == 0) {
      const std::uint32_t wanted = next_sequence(sequence);
      engine::descriptor seen;
      bool leaving = false;
      for (unsigned polls = turn; !poll(slot, wanted, seen); ++polls) {
        dev::let_others_run();
        // Only after an empty read, so that what the CPU sent in time is executed. Twice the lease is the hard limit: a
        // CPU that never stops sending has to wait for the next generation.
        if (polls % kPollsBetweenClocks == 0 && dev::global_timer_ns() - begin_ns >= lease_ns) {
          leaving = true;
          break;
        }
      }
      if (!leaving && turn % kPollsBetweenClocks == 0 && dev::global_timer_ns() - begin_ns >= 2 * lease_ns) leaving = true;
      if (leaving) {
        seen.src_pitch.word = engine::op_leave;
      } else {
        sequence = wanted;
#if defined(__SANITIZE_THREAD__)
        (void)dev::load_acquire<std::uint32_t>(line + 16);  // status_line::posted
#endif
      }
      now = seen;
    }
    dev::sync_threads();
    const engine::descriptor command = now;
    const std::uint32_t operation = command.src_pitch.word;
    if (operation == engine::op_leave) break;
    if (operation == engine::op_low_latency) {
      send_low_latency(command, me, threads);
      continue;
    }
    if (operation == engine::op_list) copy_list(command, me, threads);
    else copy_rows(command, me, threads);
    dev::sync_threads();
    if (me == 0) {
      // After the other threads' stores too, since the barrier ordered them. Saves 0.2 us compared with a fence and a
      // store (H100).
      dev::store_release<std::uint32_t>(line, command.src.sequence);
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
