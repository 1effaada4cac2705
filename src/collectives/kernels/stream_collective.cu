// SPDX-License-Identifier: Apache-2.0
// Collectives that kernels carry out by themselves, between GPUs that reach each other's memory. Block b of a rank talks to
// block b of the others only. Nobody but the kernels takes part, so a launch may be captured in a graph.
//
// Small: each word of 8 bytes travels in 16 that are stored at once, together with the mark of the launch. Who sees the mark
// has the word; there is no flag to wait for. An inbox is used by every second launch of a block: a rank begins launch
// n + 2 only after n + 1, for which every other rank must have ended n.
//
// Large: a share goes in chunks, `depth` of which may be under way. Chunk i is given to the rank whose share it is of, which
// combines and gives the result to all. Flags count chunks and never go back. Whoever flags chunk i + depth has taken the
// results of chunk i, and whoever has the result of chunk i knows that its contribution was used; so no slot is overwritten
// too early. All-gather has no contributions and reduce-scatter no results: their flags travel all the same, for that
// reason.
//
// A wait that finds the stop word set, or is out of time, ends the launch; what it leaves behind is not to be used.
#include "collectives/kernels/element_numbers.cuh"
#include "collectives/stream_job.hpp"

using namespace pl::dev;
using namespace pl::collectives;

namespace {

#if defined(__CUDACC__)
constexpr unsigned kPollsBetweenChecks = 4096;
#else
constexpr unsigned kPollsBetweenChecks = 64;  // a poll may give its CPU away, on a busy machine for milliseconds
#endif
constexpr std::uint64_t kTimedOut = 110;  // ETIMEDOUT

PL_DEVICE std::uint64_t least(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

// Calls `act` with each other rank, the next one first, so that not all ranks begin with the same one.
template <class Act>
PL_DEVICE void for_peers(const stream_job& job, Act&& act) {
  PL_NO_UNROLL
  for (unsigned k = 1; k < job.size; ++k) act(job.rank + k < job.size ? job.rank + k : job.rank + k - job.size);
}

// `begin_ns`: 0 at first.
PL_DEVICE bool must_stop(const stream_job& job, std::uint64_t& begin_ns) {
  if (load_relaxed<std::uint64_t>(job.stop) != 0) return true;
  const std::uint64_t now_ns = global_timer_ns();
  if (begin_ns == 0) begin_ns = now_ns;
  if (job.timeout_ns == 0 || now_ns - begin_ns < job.timeout_ns) return false;
  store_release<std::uint64_t>(job.stop, kTimedOut);
  return true;
}

PL_DEVICE bool wait_for(const stream_job& job, std::uint64_t word, std::uint64_t value) {
  std::uint64_t begin_ns = 0;
  for (unsigned polls = 1; load_acquire<std::uint64_t>(word) < value; ++polls)
    if (polls % kPollsBetweenChecks == 0 && must_stop(job, begin_ns)) return false;
  return true;
}

// ---- Words of the user's memory

template <class Bits>
PL_DEVICE std::uint64_t load_word(const stream_job& job, std::uint64_t address, std::uint64_t index) {
  const std::uint64_t begin = address + index * 8, left = job.bytes - index * 8;
  return job.is_aligned != 0 && left >= 8 ? load_data64(begin) : load_elements<Bits>(begin, left);
}
template <class Bits>
PL_DEVICE void store_word(const stream_job& job, std::uint64_t address, std::uint64_t index, std::uint64_t word) {
  const std::uint64_t begin = address + index * 8, left = job.bytes - index * 8;
  if (job.is_aligned != 0 && left >= 8) return store_relaxed<std::uint64_t>(begin, word);
  store_elements<Bits>(begin, left, word);
}

// ---- Small

struct small_launch {
  std::uint64_t counter, mark, first, last;

  PL_DEVICE explicit small_launch(const stream_job& job)
      : counter(job.region[job.rank] + kSmallCounts + 8ull * block_x()),
        mark(load_data64(counter) + 1),
        first(least(std::uint64_t{block_x()} * job.words_per_block, job.words)),
        last(least(first + job.words_per_block, job.words)) {}

  // Where `owner` takes what `source` sends.
  PL_DEVICE std::uint64_t inbox(const stream_job& job, unsigned owner, unsigned source, std::uint64_t index) const {
    const std::uint64_t place = (mark % 2 * job.size + source) * job.blocks + block_x();
    return job.region[owner] + job.inbox + (place * job.inbox_words + (index - first)) * 16;
  }
  PL_DEVICE void send(const stream_job& job, unsigned owner, std::uint64_t index, std::uint64_t word) const {
    store_vec16(inbox(job, owner, job.rank, index), vec16{word, mark});
  }
  PL_DEVICE bool receive(const stream_job& job, unsigned source, std::uint64_t index, std::uint64_t& word) const {
    const std::uint64_t address = inbox(job, job.rank, source, index);
    std::uint64_t begin_ns = 0;
    for (unsigned polls = 1;; ++polls) {
      const vec16 found = load_vec16(address);
      if (found.high == mark) return word = found.low, true;
      let_others_run();
      if (polls % kPollsBetweenChecks == 0 && must_stop(job, begin_ns)) return false;
    }
  }
  // By all threads.
  PL_DEVICE void end() const {
    sync_threads();
    if (thread_x() == 0) store_relaxed<std::uint64_t>(counter, mark);
  }
};

template <class Numbers>
PL_DEVICE void reduce_small(const stream_job& job) {
  using bits = typename Numbers::bits;
  const small_launch launch(job);
  PL_NO_UNROLL
  for (std::uint64_t i = launch.first + thread_x(); i < launch.last; i += block_dim_x())
    for_peers(job, [&](unsigned peer) {
      launch.send(job, peer, i, load_word<bits>(job, job.source + peer * job.source_stride, i));
    });
  bool is_good = true;
  PL_NO_UNROLL
  for (std::uint64_t i = launch.first + thread_x(); i < launch.last && is_good; i += block_dim_x()) {
    word_values<Numbers> sum;
    PL_NO_UNROLL
    for (unsigned rank = 0; rank < job.size && is_good; ++rank) {
      std::uint64_t word = 0;
      if (rank == job.rank) word = load_word<bits>(job, job.source + rank * job.source_stride, i);
      else is_good = launch.receive(job, rank, i, word);
      if (rank == 0) sum.set(word);
      else sum.combine(job.op, word);
    }
    if (is_good) store_word<bits>(job, job.destination, i, sum.word());
  }
  launch.end();
}

// All-gather, all-to-all and barrier.
PL_DEVICE void move_small(const stream_job& job) {
  const small_launch launch(job);
  const bool has_data = job.kind != kStreamBarrier;
  PL_NO_UNROLL
  for (std::uint64_t i = launch.first + thread_x(); i < launch.last; i += block_dim_x()) {
    for_peers(job, [&](unsigned peer) {
      const std::uint64_t origin = job.source + peer * job.source_stride;
      launch.send(job, peer, i, has_data ? load_word<std::uint8_t>(job, origin, i) : 0);
    });
    if (has_data)
      store_word<std::uint8_t>(job, job.destination + job.rank * job.destination_stride, i,
                               load_word<std::uint8_t>(job, job.source + job.rank * job.source_stride, i));
  }
  bool is_good = true;
  PL_NO_UNROLL
  for (std::uint64_t i = launch.first + thread_x(); i < launch.last && is_good; i += block_dim_x())
    for_peers(job, [&](unsigned peer) {
      std::uint64_t word = 0;
      is_good = is_good && launch.receive(job, peer, i, word);
      if (is_good && has_data) store_word<std::uint8_t>(job, job.destination + peer * job.destination_stride, i, word);
    });
  launch.end();
}

// ---- Large

// One block's part of a large collective.
struct chunk_walk {
  const stream_job& job;
  std::uint64_t counter, done, count;  // chunks of this block: in earlier launches, in this one

  PL_DEVICE explicit chunk_walk(const stream_job& the_job)
      : job(the_job),
        counter(job.region[job.rank] + kChunkCounts + 8ull * block_x()),
        done(load_data64(counter)),
        count(block_x() < job.chunks ? (job.chunks - 1 - block_x()) / grid_dim_x() + 1 : 0) {}

  PL_DEVICE std::uint64_t offset_of(std::uint64_t i) const { return (block_x() + i * grid_dim_x()) * job.chunk_bytes; }
  // Of chunk i of the share of `rank`.
  PL_DEVICE std::uint64_t bytes_of(unsigned rank, std::uint64_t i) const {
    std::uint64_t share = job.share_bytes;
    if (job.kind == kStreamAllReduce) {
      const std::uint64_t begin = least(rank * job.share_bytes, job.bytes);
      share = least(job.share_bytes, job.bytes - begin);
    }
    const std::uint64_t offset = offset_of(i);
    return offset >= share ? 0 : least(job.chunk_bytes, share - offset);
  }
  PL_DEVICE std::uint64_t source_of(unsigned rank, std::uint64_t i) const {
    return job.source + rank * job.source_stride + offset_of(i);
  }
  PL_DEVICE std::uint64_t destination_of(unsigned rank, std::uint64_t i) const {
    return job.destination + rank * job.destination_stride + offset_of(i);
  }
  // Slots of `owner`, for what `source` gives.
  PL_DEVICE std::uint64_t slot_of(std::uint64_t slots, unsigned owner, unsigned source, std::uint64_t i) const {
    const std::uint64_t turn = (done + i) & (job.depth - 1);  // the depth is a power of two
    const std::uint64_t place = (std::uint64_t{source} * job.blocks + block_x()) * job.depth + turn;
    return job.region[owner] + slots + place * job.slot_bytes;
  }
  PL_DEVICE std::uint64_t flag_of(std::uint64_t flags, unsigned owner, unsigned source) const {
    return job.region[owner] + flags + 8 * (std::uint64_t{block_x()} * kMaxStreamRanks + source);
  }
  // By all threads: what they have stored before is there when the flag is. A release is cumulative over the barrier.
  PL_DEVICE void flag_all(std::uint64_t flags, std::uint64_t i) const {
    sync_threads();
    const unsigned peer = thread_x();
    if (peer < job.size && peer != job.rank) store_release<std::uint64_t>(flag_of(flags, peer, job.rank), done + i + 1);
  }
  // By all threads, with one answer.
  PL_DEVICE bool wait_all(std::uint64_t flags, std::uint64_t i) const {
    volatile unsigned* const stopped = static_cast<volatile unsigned*>(shared_memory());
    if (thread_x() == 0) *stopped = 0;
    sync_threads();
    const unsigned peer = thread_x();
    if (peer < job.size && peer != job.rank && !wait_for(job, flag_of(flags, job.rank, peer), done + i + 1)) *stopped = 1;
    sync_threads();
    return *stopped == 0;
  }
  PL_DEVICE void end() const {
    sync_threads();
    if (thread_x() == 0) store_relaxed<std::uint64_t>(counter, done + count);
  }
};

constexpr unsigned kTogether = 8;  // loads of a thread that are under way at once

// `store(offset, load(offset))` for each vector of `bytes`.
template <class Load, class Store>
PL_DEVICE void for_vectors(std::uint64_t bytes, Load&& load, Store&& store) {
  const std::uint64_t stride = std::uint64_t{block_dim_x()} * 16;
  PL_NO_UNROLL
  for (std::uint64_t first = std::uint64_t{thread_x()} * 16; first < bytes; first += kTogether * stride) {
    vec16 held[kTogether];
    for (unsigned u = 0; u < kTogether; ++u)
      if (first + u * stride < bytes) held[u] = load(first + u * stride);
    for (unsigned u = 0; u < kTogether; ++u)
      if (first + u * stride < bytes) store(first + u * stride, held[u]);
  }
}

template <class Bits>
PL_DEVICE void give_contributions(const chunk_walk& walk, std::uint64_t i) {
  const stream_job& job = walk.job;
  for_peers(job, [&](unsigned peer) {
    const std::uint64_t bytes = walk.bytes_of(peer, i), origin = walk.source_of(peer, i);
    const std::uint64_t slot = walk.slot_of(job.slots, peer, job.rank, i);
    for_vectors(
        bytes, [&](std::uint64_t offset) { return load_part<Bits>(job.is_aligned != 0, origin, offset, bytes); },
        [&](std::uint64_t offset, vec16 value) { store_stream_vec16(slot + offset, value); });
  });
  walk.flag_all(kArrivedFlags, i);
}

template <class Bits>
PL_DEVICE void take_results(const chunk_walk& walk, std::uint64_t slots, std::uint64_t i) {
  const stream_job& job = walk.job;
  for_peers(job, [&](unsigned peer) {
    const std::uint64_t bytes = walk.bytes_of(peer, i);
    const std::uint64_t slot = walk.slot_of(slots, job.rank, peer, i), target = walk.destination_of(peer, i);
    for_vectors(
        bytes, [&](std::uint64_t offset) { return load_stream_vec16(slot + offset); },
        [&](std::uint64_t offset, vec16 value) { store_part<Bits>(job.is_aligned != 0, target, offset, bytes, value); });
  });
}

// This rank's share: combined in the order of the ranks, and given to all if they want it.
template <class Numbers>
PL_DEVICE void combine_share(const chunk_walk& walk, std::uint64_t i) {
  using bits = typename Numbers::bits;
  const stream_job& job = walk.job;
  const std::uint64_t bytes = walk.bytes_of(job.rank, i), own = walk.source_of(job.rank, i);
  const std::uint64_t target = walk.destination_of(job.rank, i);
  constexpr unsigned kVectors = sizeof(bits) == 1 ? 2 : 4;  // their numbers are in registers
  const std::uint64_t stride = std::uint64_t{block_dim_x()} * 16;
  PL_NO_UNROLL
  for (std::uint64_t first = std::uint64_t{thread_x()} * 16; first < bytes; first += kVectors * stride) {
    vector_values<Numbers> sum[kVectors];
    PL_NO_UNROLL
    for (unsigned rank = 0; rank < job.size; ++rank) {
      const std::uint64_t slot = walk.slot_of(job.slots, job.rank, rank, i);
      vec16 arrived[kVectors];
      for (unsigned u = 0; u < kVectors; ++u) {
        const std::uint64_t offset = first + u * stride;
        arrived[u] = {0, 0};
        if (offset >= bytes) continue;
        arrived[u] =
            rank == job.rank ? load_part<bits>(job.is_aligned != 0, own, offset, bytes) : load_stream_vec16(slot + offset);
      }
      for (unsigned u = 0; u < kVectors; ++u) {
        if (rank == 0) sum[u].set(arrived[u]);
        else sum[u].combine(job.op, arrived[u]);
      }
    }
    for (unsigned u = 0; u < kVectors; ++u) {
      const std::uint64_t offset = first + u * stride;
      if (offset >= bytes) break;
      const vec16 result = sum[u].vector();
      store_part<bits>(job.is_aligned != 0, target, offset, bytes, result);
      if (job.kind != kStreamAllReduce) continue;
      for_peers(job,
                [&](unsigned peer) { store_stream_vec16(walk.slot_of(job.results, peer, job.rank, i) + offset, result); });
    }
  }
}

template <class Numbers>
PL_DEVICE void reduce_large(const stream_job& job) {
  using bits = typename Numbers::bits;
  const chunk_walk walk(job);
  PL_NO_UNROLL
  for (std::uint64_t next = 0; next < walk.count + job.depth; ++next) {
    if (next >= job.depth) {
      const std::uint64_t i = next - job.depth;
      if (!walk.wait_all(kArrivedFlags, i)) return;
      combine_share<Numbers>(walk, i);
      walk.flag_all(kResultFlags, i);
      if (!walk.wait_all(kResultFlags, i)) return;
      if (job.kind == kStreamAllReduce) take_results<bits>(walk, job.results, i);
    }
    if (next < walk.count) give_contributions<bits>(walk, next);
  }
  walk.end();
}

// The own block of an all-gather or all-to-all, where it does not lie in its place already.
PL_DEVICE void copy_own(const chunk_walk& walk, std::uint64_t i) {
  const stream_job& job = walk.job;
  const std::uint64_t bytes = walk.bytes_of(job.rank, i), origin = walk.source_of(job.rank, i);
  const std::uint64_t target = walk.destination_of(job.rank, i);
  if (origin == target) return;
  for_vectors(
      bytes, [&](std::uint64_t offset) { return load_part<std::uint8_t>(job.is_aligned != 0, origin, offset, bytes); },
      [&](std::uint64_t offset, vec16 value) {
        store_part<std::uint8_t>(job.is_aligned != 0, target, offset, bytes, value);
      });
}

// Everything is a contribution that is taken as it is. Its flag back says that the slot is free.
PL_DEVICE void move_large(const stream_job& job) {
  const chunk_walk walk(job);
  PL_NO_UNROLL
  for (std::uint64_t next = 0; next < walk.count + job.depth; ++next) {
    if (next >= job.depth) {
      const std::uint64_t i = next - job.depth;
      copy_own(walk, i);
      if (!walk.wait_all(kArrivedFlags, i)) return;
      take_results<std::uint8_t>(walk, job.slots, i);
      walk.flag_all(kResultFlags, i);
      if (!walk.wait_all(kResultFlags, i)) return;
    }
    if (next < walk.count) give_contributions<std::uint8_t>(walk, next);
  }
  walk.end();
}

}  // namespace

PL_BOUND_KERNEL(512) stream_move_small(stream_job job) { move_small(job); }
PL_BOUND_KERNEL(512) stream_move_large(stream_job job) { move_large(job); }
PL_EXPORT_KERNEL(stream_move_small)
PL_EXPORT_KERNEL(stream_move_large)

#define PL_REDUCTION(type)                                                                               \
  PL_BOUND_KERNEL(512) stream_reduce_small_##type(stream_job job) { reduce_small<type##_numbers>(job); } \
  PL_BOUND_KERNEL(512) stream_reduce_large_##type(stream_job job) { reduce_large<type##_numbers>(job); } \
  PL_EXPORT_KERNEL(stream_reduce_small_##type)                                                           \
  PL_EXPORT_KERNEL(stream_reduce_large_##type)
PL_FOR_EACH_ELEMENT(PL_REDUCTION)
#undef PL_REDUCTION
