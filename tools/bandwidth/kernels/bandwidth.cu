// SPDX-License-Identifier: Apache-2.0
// The kernels of `peerlane bandwidth`: copies, and the data that proves them.
#include "cuda/kernel_device.cuh"
#include "tools/bandwidth/bulk_protocol.hpp"
#include "tools/bandwidth/kernels/bulk_copy.cuh"
#include "tools/bandwidth/latency_protocol.hpp"
#include "tools/bandwidth/pattern_hash.hpp"

using namespace pl::dev;
using namespace pl::bandwidth::protocol;
using pl::bandwidth::check_result;
using pl::bandwidth::digest_word;
using pl::bandwidth::pattern_word;
using pl::bandwidth::sequence_word;

namespace {

// Loads in flight for each thread. 512 threads then have 64 KiB in flight on a multiprocessor: more than bandwidth
// times latency of any link or memory.
constexpr int kInFlight = 8;

PL_DEVICE std::uint64_t first_of_thread() { return std::uint64_t{block_x()} * block_dim_x() + thread_x(); }
PL_DEVICE std::uint64_t threads_of_grid() { return std::uint64_t{grid_dim_x()} * block_dim_x(); }

PL_DEVICE void copy_vectors(std::uint64_t dst, std::uint64_t src, std::uint64_t count) {
  const std::uint64_t step = threads_of_grid();
  std::uint64_t index = first_of_thread();
  for (; index + (kInFlight - 1) * step < count; index += kInFlight * step) {
    vec16 in_flight[kInFlight];
    for (int i = 0; i < kInFlight; ++i) in_flight[i] = load_stream_vec16(src + 16 * (index + i * step));
    for (int i = 0; i < kInFlight; ++i) store_stream_vec16(dst + 16 * (index + i * step), in_flight[i]);
  }
  for (; index < count; index += step) store_stream_vec16(dst + 16 * index, load_stream_vec16(src + 16 * index));
}

template <class Word>
PL_DEVICE void copy_words(std::uint64_t dst, std::uint64_t src, std::uint64_t count) {
  for (std::uint64_t index = first_of_thread(); index < count; index += threads_of_grid())
    store_relaxed<Word>(dst + sizeof(Word) * index, load_relaxed<Word>(src + sizeof(Word) * index));
}

// The whole of [0, bytes) in pieces as wide as the alignment of both sides allows, the rest by bytes.
PL_DEVICE void copy_once(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes) {
  const std::uint64_t both = dst | src;
  std::uint64_t done = 0;
  if (both % 16 == 0) {
    copy_vectors(dst, src, bytes / 16);
    done = bytes / 16 * 16;
  } else if (both % 4 == 0) {
    copy_words<std::uint32_t>(dst, src, bytes / 4);
    done = bytes / 4 * 4;
  }
  copy_words<std::uint8_t>(dst + done, src + done, bytes - done);
}

// The `bytes` (1..16) at `address`; what is beyond them is zero.
PL_DEVICE vec16 vector_at(std::uint64_t address, std::uint64_t bytes) {
  if (address % 16 == 0 && bytes == 16) return load_stream_vec16(address);
  vec16 out{0, 0};
  for (unsigned i = 0; i < bytes; ++i)
    (i < 8 ? out.low : out.high) |= std::uint64_t{load_relaxed<std::uint8_t>(address + i)} << (8 * (i % 8));
  return out;
}

PL_DEVICE void put_vector(std::uint64_t address, std::uint64_t bytes, vec16 value) {
  if (address % 16 == 0 && bytes == 16) return store_stream_vec16(address, value);
  for (unsigned i = 0; i < bytes; ++i)
    store_relaxed<std::uint8_t>(address + i, static_cast<std::uint8_t>((i < 8 ? value.low : value.high) >> (8 * (i % 8))));
}

// Mask of a word of which `bytes` count (8 or more: all).
PL_DEVICE std::uint64_t mask_of(std::uint64_t bytes) {
  return bytes >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * bytes)) - 1;
}

// Combines what one thread of the grid reads of [0, bytes) into one number. `read`: the vector at an index, and how
// many of its bytes count.
template <class Read>
PL_DEVICE std::uint64_t digest_of_thread(std::uint64_t bytes, const Read& read) {
  const std::uint64_t step = threads_of_grid(), count = bytes / 16;
  std::uint64_t digest = 0, index = first_of_thread();
  for (; index + (kInFlight - 1) * step < count; index += kInFlight * step) {
    vec16 in_flight[kInFlight];
    for (int i = 0; i < kInFlight; ++i) in_flight[i] = read(index + i * step, 16);
    for (int i = 0; i < kInFlight; ++i) digest += digest_word(index + i * step, in_flight[i].low, in_flight[i].high);
  }
  for (; index < (bytes + 15) / 16; index += step) {
    const std::uint64_t left = bytes - 16 * index;
    const vec16 last = read(index, left < 16 ? left : 16);
    digest += digest_word(index, last.low, last.high);
  }
  return digest;
}

PL_DEVICE void report_difference(std::uint64_t out, const check_result& mine) {
  if (mine.wrong_bytes == 0) return;
  atomic_add<std::uint64_t>(out, mine.wrong_bytes);
  atomic_min64(out + 8, mine.first_offset);
  atomic_or64(out + 16, mine.flipped_bits);
}

}  // namespace

// `copies` times the same copy in one launch. Blocks are not kept together between copies: each writes what the others
// write, so no copy can undo another.
PL_KERNEL void bandwidth_copy(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes, std::uint64_t copies) {
  for (std::uint64_t copy = 0; copy < copies; ++copy) copy_once(dst, src, bytes);
}

// The same into a multicast object. `bytes`: a multiple of 4, as there are no narrower stores to it.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
PL_KERNEL void bandwidth_multicast(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes, std::uint64_t copies) {
  const std::uint64_t vectors = (dst | src) % 16 == 0 ? bytes / 16 : 0;
  for (std::uint64_t copy = 0; copy < copies; ++copy) {
    for (std::uint64_t index = first_of_thread(); index < vectors; index += threads_of_grid())
      store_multicast_vec16(dst + 16 * index, load_stream_vec16(src + 16 * index));
    for (std::uint64_t index = 4 * vectors + first_of_thread(); index < bytes / 4; index += threads_of_grid())
      store_multicast(dst + 4 * index, load_relaxed<std::uint32_t>(src + 4 * index));
  }
}
PL_EXPORT_KERNEL(bandwidth_multicast)
#endif

// The pattern of `seed`, with all bits of `flip` inverted.
PL_KERNEL void bandwidth_fill(std::uint64_t dst, std::uint64_t bytes, std::uint64_t seed, std::uint64_t flip) {
  for (std::uint64_t index = first_of_thread(); index < (bytes + 15) / 16; index += threads_of_grid()) {
    const std::uint64_t left = bytes - 16 * index;
    put_vector(dst + 16 * index, left < 16 ? left : 16,
               {pattern_word(2 * index, seed) ^ flip, pattern_word(2 * index + 1, seed) ^ flip});
  }
}

// Compares every byte with the pattern. `out`: a check_result, to which is added.
PL_KERNEL void bandwidth_check(std::uint64_t src, std::uint64_t bytes, std::uint64_t seed, std::uint64_t out) {
  check_result mine;
  for (std::uint64_t index = first_of_thread(); index < (bytes + 15) / 16; index += threads_of_grid()) {
    const std::uint64_t left = bytes - 16 * index;
    const vec16 found = vector_at(src + 16 * index, left < 16 ? left : 16);
    mine.add(16 * index, found.low ^ (pattern_word(2 * index, seed) & mask_of(left)));
    if (left > 8) mine.add(16 * index + 8, found.high ^ (pattern_word(2 * index + 1, seed) & mask_of(left - 8)));
  }
  report_difference(out, mine);
}

// Reads [0, bytes) at `src` and writes nothing but 8 bytes of each thread at `dst`, which was zero: the digest of what it
// read, or its complement for good as soon as two passes differ, in this launch or another one.
PL_KERNEL void bandwidth_read(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes, std::uint64_t copies) {
  const std::uint64_t slot = dst + 8 * first_of_thread();
  for (std::uint64_t copy = 0; copy < copies; ++copy) {
    const std::uint64_t digest = digest_of_thread(
        bytes, [src](std::uint64_t index, std::uint64_t count) { return vector_at(src + 16 * index, count); });
    const std::uint64_t before = load_relaxed<std::uint64_t>(slot);
    store_relaxed<std::uint64_t>(slot, before == 0 || before == digest ? digest : ~digest);
  }
}

// Compares those digests with the ones of the pattern. The grid must be that of bandwidth_read.
PL_KERNEL void bandwidth_check_read(std::uint64_t digests, std::uint64_t bytes, std::uint64_t seed, std::uint64_t out) {
  const std::uint64_t expected = digest_of_thread(bytes, [seed](std::uint64_t index, std::uint64_t count) {
    return vec16{pattern_word(2 * index, seed) & mask_of(count),
                 count > 8 ? pattern_word(2 * index + 1, seed) & mask_of(count - 8) : 0};
  });
  check_result mine;
  mine.add(8 * first_of_thread(), load_relaxed<std::uint64_t>(digests + 8 * first_of_thread()) ^ expected);
  report_difference(out, mine);
}

// Writes [0, bytes) at `dst` and reads nothing but the 8 bytes at `src`, with which the sequence begins.
PL_KERNEL void bandwidth_write(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes, std::uint64_t copies) {
  const std::uint64_t first = load_relaxed<std::uint64_t>(src);
  for (std::uint64_t copy = 0; copy < copies; ++copy)
    for (std::uint64_t index = first_of_thread(); index < (bytes + 15) / 16; index += threads_of_grid()) {
      const std::uint64_t left = bytes - 16 * index;
      put_vector(dst + 16 * index, left < 16 ? left : 16,
                 {sequence_word(2 * index, first), sequence_word(2 * index + 1, first)});
    }
}

// Compares every byte with the sequence that begins with the first word of the pattern of `seed`.
PL_KERNEL void bandwidth_check_write(std::uint64_t written, std::uint64_t bytes, std::uint64_t seed, std::uint64_t out) {
  const std::uint64_t first = pattern_word(0, seed);
  check_result mine;
  for (std::uint64_t index = first_of_thread(); index < (bytes + 15) / 16; index += threads_of_grid()) {
    const std::uint64_t left = bytes - 16 * index;
    const vec16 found = vector_at(written + 16 * index, left < 16 ? left : 16);
    mine.add(16 * index, found.low ^ (sequence_word(2 * index, first) & mask_of(left)));
    if (left > 8) mine.add(16 * index + 8, found.high ^ (sequence_word(2 * index + 1, first) & mask_of(left - 8)));
  }
  report_difference(out, mine);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Like bandwidth_copy, with bulk copies through shared memory. Both addresses are multiples of 16. Dynamic shared
// memory: kBulkSharedBytes. A block takes every n-th piece; the next pieces are loaded while one is stored.
PL_KERNEL void bandwidth_copy_bulk(std::uint64_t dst, std::uint64_t src, std::uint64_t bytes, std::uint64_t copies) {
  if (thread_x() != 0) return;
  const auto unaligned = reinterpret_cast<std::uintptr_t>(shared_memory());
  auto* const stages = reinterpret_cast<unsigned char*>((unaligned + kBulkAlignment - 1) / kBulkAlignment * kBulkAlignment);
  auto* const barriers = reinterpret_cast<std::uint64_t*>(stages + kBulkStages * kBulkBytes);
  for (unsigned i = 0; i < kBulkStages; ++i) bulk_open(barriers + i);
  const std::uint64_t whole = bytes / 16 * 16;
  const std::uint64_t all = (whole + kBulkBytes - 1) / kBulkBytes;
  const std::uint64_t mine = block_x() < all ? (all - block_x() - 1) / grid_dim_x() + 1 : 0;
  const std::uint64_t pieces = mine * copies;
  const auto offset_of = [&](std::uint64_t piece) { return (block_x() + piece % mine * grid_dim_x()) * kBulkBytes; };
  const auto bytes_at = [&](std::uint64_t offset) {
    return static_cast<unsigned>(whole - offset < kBulkBytes ? whole - offset : kBulkBytes);
  };
  const auto load = [&](std::uint64_t piece) {
    const std::uint64_t offset = offset_of(piece);
    const auto stage = static_cast<unsigned>(piece % kBulkStages);
    bulk_load(stages + stage * kBulkBytes, src + offset, bytes_at(offset), barriers + stage);
  };
  for (std::uint64_t piece = 0; piece < pieces && piece + 1 < kBulkStages; ++piece) load(piece);
  for (std::uint64_t piece = 0; piece < pieces; ++piece) {
    const auto stage = static_cast<unsigned>(piece % kBulkStages);
    const std::uint64_t offset = offset_of(piece);
    bulk_wait(barriers + stage, static_cast<unsigned>(piece / kBulkStages & 1));
    bulk_store(dst + offset, stages + stage * kBulkBytes, bytes_at(offset));
    if (const std::uint64_t next = piece + kBulkStages - 1; next < pieces) {
      bulk_stores_have_read_but_one();  // the piece before this one, whose stage is free now
      load(next);
    }
  }
  bulk_stores_are_done();
  if (block_x() == 0)
    for (std::uint64_t i = whole; i < bytes; ++i) store_relaxed<std::uint8_t>(dst + i, load_relaxed<std::uint8_t>(src + i));
}
PL_EXPORT_KERNEL(bandwidth_copy_bulk)
#endif

namespace {

// A pointer chase by one thread; `follow` is the access. `first`: a line whose first 8 bytes are the address of the next
// one; it is followed once over `warm_up` lines, then over `accesses` timed as a whole, then over as many timed one by one.
// `out`: a chase_result, followed by the cycles of each access. Dynamic shared memory: kChaseBatch 32-bit words and one
// 64-bit word.
//
// A load is waited for when its value is used: storing it to shared memory is the cheapest use that cannot be moved. The
// times of a batch are kept in shared memory, so that writing them out disturbs one access of a batch at most.
template <class Follow>
PL_DEVICE void chase(std::uint64_t first, std::uint64_t warm_up, std::uint64_t accesses, std::uint64_t out,
                     const Follow& follow) {
  auto* const used = static_cast<volatile std::uint64_t*>(shared_memory());
  auto* const batch = reinterpret_cast<volatile std::uint32_t*>(used + 1);
  std::uint64_t index = first;
  for (std::uint64_t i = 0; i < warm_up; ++i) index = follow(index);
  *used = index;

  const std::uint64_t begin_ns = global_timer_ns();
  const std::uint64_t begin = clock_cycles();
  for (std::uint64_t i = 0; i < accesses; ++i) index = follow(index);
  *used = index;
  store_relaxed<std::uint64_t>(out + offsetof(chase_result, whole_cycles), clock_cycles() - begin);
  store_relaxed<std::uint64_t>(out + offsetof(chase_result, whole_ns), global_timer_ns() - begin_ns);

  std::uint64_t empty = ~std::uint64_t{0};
  for (int i = 0; i < 64; ++i) {
    const std::uint64_t before = clock_cycles();
    *used = index;
    const std::uint64_t cycles = clock_cycles() - before;
    if (cycles < empty) empty = cycles;
  }
  store_relaxed<std::uint64_t>(out + offsetof(chase_result, empty_cycles), empty);

  for (std::uint64_t done = 0; done < accesses; done += kChaseBatch) {
    const std::uint64_t count = accesses - done < kChaseBatch ? accesses - done : kChaseBatch;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t before = clock_cycles();
      index = follow(index);
      *used = index;
      batch[i] = static_cast<std::uint32_t>(clock_cycles() - before);
    }
    for (std::uint64_t i = 0; i < count; ++i)
      store_relaxed<std::uint32_t>(out + sizeof(chase_result) + 4 * (done + i), batch[i]);
  }
}

}  // namespace

PL_KERNEL void bandwidth_chase(std::uint64_t first, std::uint64_t warm_up, std::uint64_t accesses, std::uint64_t out) {
  chase(first, warm_up, accesses, out, [](std::uint64_t line) { return load_relaxed<std::uint64_t>(line); });
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// The same, each access a bulk copy of 16 bytes into shared memory. Dynamic shared memory: kBulkChaseBytes.
PL_KERNEL void bandwidth_chase_bulk(std::uint64_t first, std::uint64_t warm_up, std::uint64_t accesses, std::uint64_t out) {
  const auto behind = reinterpret_cast<std::uintptr_t>(shared_memory()) + kChaseSharedBytes;
  auto* const landed = reinterpret_cast<vec16*>((behind + 15) / 16 * 16);
  auto* const barrier = reinterpret_cast<std::uint64_t*>(landed + 1);
  bulk_open(barrier);
  unsigned phase = 0;
  chase(first, warm_up, accesses, out, [&](std::uint64_t line) {
    bulk_load(landed, line, 16, barrier);
    bulk_wait(barrier, phase);
    phase ^= 1;
    return *reinterpret_cast<volatile std::uint64_t*>(&landed->low);
  });
}
PL_EXPORT_KERNEL(bandwidth_chase_bulk)
#endif

// Answers `rounds` values that the CPU stores to `flag`, kFirstRound and up, by storing them to `answer`. Leaves when the
// CPU stores kAbort, or does not store the next value for `time_limit_ns`.
PL_KERNEL void bandwidth_echo(std::uint64_t flag, std::uint64_t answer, std::uint64_t rounds, std::uint64_t time_limit_ns) {
  constexpr unsigned kPollsPerClock = 1024;  // the timer is slow to read
  store_relaxed<std::uint32_t>(answer, kReady);
  for (std::uint32_t round = 0; round < rounds; ++round) {
    const std::uint64_t begin_ns = global_timer_ns();
    for (unsigned polls = 1;; ++polls) {
      const std::uint32_t seen = load_relaxed<std::uint32_t>(flag);
      if (seen == kFirstRound + round) break;
      if (seen == kAbort) return;
      if (polls % kPollsPerClock == 0 && global_timer_ns() - begin_ns > time_limit_ns) return;
    }
    store_relaxed<std::uint32_t>(answer, kFirstRound + round);
  }
}

PL_EXPORT_KERNEL(bandwidth_copy)
PL_EXPORT_KERNEL(bandwidth_fill)
PL_EXPORT_KERNEL(bandwidth_check)
PL_EXPORT_KERNEL(bandwidth_chase)
PL_EXPORT_KERNEL(bandwidth_read)
PL_EXPORT_KERNEL(bandwidth_check_read)
PL_EXPORT_KERNEL(bandwidth_write)
PL_EXPORT_KERNEL(bandwidth_check_write)
PL_EXPORT_KERNEL(bandwidth_echo)
