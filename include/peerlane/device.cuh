// SPDX-License-Identifier: Apache-2.0
// Transfers that kernels start and a copy engine executes: neither a CPU nor a multiprocessor moves the data. Header-only,
// C++17, for nvcc and NVRTC (it includes no standard header). The host makes rings and windows with <peerlane/device.h>.
//
//   __global__ void produce(peerlane_device_ring ring, peerlane_device_window host, peerlane_device_window gpu) {
//     ... write results into gpu ...
//     namespace pd = peerlane::device;
//     pd::put_signal_block(ring, host, 0, gpu, 0, bytes, host, flag_offset, 1);   // bytes, then the word, in host memory
//   }
//
// Any thread may call the functions of thread scope, also in divergent code. All threads of a warp or block call the forms
// _warp and _block together, with the same arguments. The transfer then includes what these threads have written before. In
// a warp, every thread gets the return value; in a block, thread 0 gets it and the others get 0.
//
// Functions return a ticket (at least 1) or an error (peerlane_device_error, negative). All waits end within the ring's
// timeout. After EIO, ECONNRESET, ESHUTDOWN, or ETIMEDOUT from a post, a ring accepts no more transfers.
//
// A thread that owns a ring (own) posts without atomics, which is fastest.
//
// Order (docs/ordering-copies.md): a ring's segments start in the order of their tickets and may overlap. A put reads what
// the calling thread (warp, block) has written before it. A signal becomes visible after the bytes of its put and of all
// puts of the ring with earlier tickets. If a put reads or overwrites what an earlier put of the ring writes, use fence() or
// PEERLANE_DEVICE_ORDERED between the two.
#pragma once

#include "device_types.h"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define PEERLANE_DEVICE_FN __device__ __forceinline__

namespace peerlane::device::port {

PEERLANE_DEVICE_FN unsigned load32(unsigned long long address) {
  unsigned value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
PEERLANE_DEVICE_FN unsigned long long load64(unsigned long long address) {
  unsigned long long value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
PEERLANE_DEVICE_FN void store32(unsigned long long address, unsigned value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
// Four words, 16-byte aligned.
PEERLANE_DEVICE_FN void store128(unsigned long long address, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
PEERLANE_DEVICE_FN unsigned long long add64(unsigned long long address, unsigned long long value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(address), value);
}
PEERLANE_DEVICE_FN void store64(unsigned long long address, unsigned long long value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}
// Acquire: later accesses of the reader come after the load. Release: the store comes after earlier accesses of the thread,
// and after those that a barrier has ordered before it; only for this GPU's memory, unless `is_system`.
PEERLANE_DEVICE_FN unsigned load32_acquire(unsigned long long address) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
PEERLANE_DEVICE_FN unsigned long long load64_acquire(unsigned long long address) {
  unsigned long long value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
PEERLANE_DEVICE_FN void store32_release(unsigned long long address, unsigned value, bool is_system) {
  if (is_system) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
  else asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
PEERLANE_DEVICE_FN unsigned cas32(unsigned long long address, unsigned expected, unsigned value) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(before)
               : "l"(address), "r"(expected), "r"(value)
               : "memory");
  return before;
}
PEERLANE_DEVICE_FN void fence_system() { __threadfence_system(); }
PEERLANE_DEVICE_FN void pause() {}
PEERLANE_DEVICE_FN unsigned long long time_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}
PEERLANE_DEVICE_FN void sync_block() { __syncthreads(); }
PEERLANE_DEVICE_FN bool is_first_of_block() { return threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0; }
PEERLANE_DEVICE_FN unsigned place_in_warp() {
  unsigned place;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(place));
  return place;
}
PEERLANE_DEVICE_FN unsigned warp_threads() { return 32; }
PEERLANE_DEVICE_FN void sync_warp() { __syncwarp(); }
PEERLANE_DEVICE_FN long long from_first(long long value) { return __shfl_sync(0xffffffffu, value, 0); }
PEERLANE_DEVICE_FN unsigned long long from_next(unsigned long long value) {  // the value of the next thread
  return __shfl_down_sync(0xffffffffu, value, 1);
}
PEERLANE_DEVICE_FN bool is_any(bool value) { return __any_sync(0xffffffffu, value) != 0; }

}  // namespace peerlane::device::port
#elif !defined(PEERLANE_DEVICE_FN)
// For other compilers, define PEERLANE_DEVICE_FN and the functions of namespace peerlane::device::port before this include.
#error "peerlane/device.cuh is for kernels: compile it with nvcc or NVRTC"
#endif

namespace peerlane::device {

namespace detail {

constexpr unsigned kEio = 5, kEtimedout = 110;
constexpr unsigned long long kMaxBytes = 1ull << 31;

// The engine's commands (methods of the copy class on subchannel 4).
constexpr unsigned kCopyHeader = 0x20048100, kLengthHeader = 0x20018106;    // source, destination, length
constexpr unsigned kPatternHeader = 0x200181c0, kPlaceHeader = 0x20028102;  // pattern of a fill, and its destination
constexpr unsigned kWordHeader = 0x20038090;
PEERLANE_DEVICE_FN unsigned launch(unsigned flags) { return 0x800080c0u | flags << 16; }
constexpr unsigned kNothing = 0x80018107;  // line count 1, which is already set
constexpr unsigned kPipelined = 1, kNotPipelined = 2, kFlush = 4, kReleaseWord = 8, kPitch = 0x180, kRemap = 0x400;

// How the word after the bytes is written. `settled`: by a separate transfer, which begins when the transfers before it have
// ended. `at_once`: by the engine's semaphore, which may overtake bytes.
enum class signal_kind : unsigned { none, settled, at_once };

struct segment {
  unsigned long long destination = 0, source = 0;
  unsigned bytes = 0;
  unsigned data_flags = 0;  // of the launch that moves the bytes
  unsigned long long signal = 0;
  unsigned value = 0;
  signal_kind kind = signal_kind::none;
  unsigned end_flags = 0;  // of the launch that counts the segment as done
};

PEERLANE_DEVICE_FN bool is_before(unsigned a, unsigned b) { return static_cast<int>(a - b) < 0; }

// The number of completed segments and the ring's error: the two words are adjacent.
struct progress {
  unsigned completed, error;
};
PEERLANE_DEVICE_FN progress poll_progress(const peerlane_device_ring& ring) {
  const unsigned long long both = port::load64(ring.control + PEERLANE_DEVICE_COMPLETED_AT);
  return {static_cast<unsigned>(both), static_cast<unsigned>(both >> 32)};
}

// Ends the ring: nothing after a segment that nobody will write can run.
PEERLANE_DEVICE_FN int give_up(const peerlane_device_ring& ring, unsigned code) {
  const unsigned before = port::cas32(ring.control + PEERLANE_DEVICE_COMPLETED_AT + 4, 0, code);
  return -static_cast<int>(before != 0 ? before : code);
}

// Waits until segment `done` (cyclic) is completed. Returns 0 or an error.
PEERLANE_DEVICE_FN int wait_completed(const peerlane_device_ring& ring, unsigned done, bool ends_ring) {
  unsigned long long begin_ns = 0;
  for (unsigned polls = 1;; ++polls) {
    const unsigned long long both = port::load64_acquire(ring.control + PEERLANE_DEVICE_COMPLETED_AT);
    const progress now{static_cast<unsigned>(both), static_cast<unsigned>(both >> 32)};
    if (!is_before(now.completed, done)) return 0;
    if (now.error != 0) return -static_cast<int>(now.error);
    port::pause();
    if (polls % 64 != 0) continue;
    const unsigned long long now_ns = port::time_ns();
    if (begin_ns == 0) begin_ns = now_ns;
    if (now_ns - begin_ns > ring.timeout_ns) return ends_ring ? give_up(ring, kEtimedout) : -static_cast<int>(kEtimedout);
  }
}

PEERLANE_DEVICE_FN unsigned long long place_of(const peerlane_device_ring& ring, unsigned ticket) {
  return ring.segments + static_cast<unsigned long long>(ticket & (ring.count - 1)) * PEERLANE_DEVICE_SEGMENT_BYTES;
}

// The CPU writes some words in advance, before the engine's wait for the segment, so that they take no time after it: the
// address of `completed`, the ticket, and the word size of a fill (4 bytes).
PEERLANE_DEVICE_FN void write_segment(const peerlane_device_ring& ring, unsigned ticket, const segment& now) {
  const unsigned long long place = place_of(ring, ticket);
  const auto signal_high = static_cast<unsigned>(now.signal >> 32), signal_low = static_cast<unsigned>(now.signal);
  port::store128(place, kCopyHeader, static_cast<unsigned>(now.source >> 32), static_cast<unsigned>(now.source),
                 static_cast<unsigned>(now.destination >> 32));
  if (now.kind == signal_kind::settled) {  // the launch that writes the word counts too
    port::store128(place + 16, static_cast<unsigned>(now.destination), kLengthHeader, now.bytes, launch(now.data_flags));
    port::store128(place + 32, kPatternHeader, now.value, kPlaceHeader, signal_high);
    port::store128(place + 48, signal_low, kLengthHeader, 1, launch(kPitch | kRemap | kNotPipelined | now.end_flags));
    port::store32(place + 64, kNothing);
  } else if (now.kind == signal_kind::at_once) {
    port::store128(place + 16, static_cast<unsigned>(now.destination), kLengthHeader, now.bytes, kWordHeader);
    port::store128(place + 32, signal_high, signal_low, now.value, launch(now.data_flags | kReleaseWord));
    port::store128(place + 48, kWordHeader, static_cast<unsigned>(ring.completed >> 32),
                   static_cast<unsigned>(ring.completed), ticket);
    port::store32(place + 64, launch(now.end_flags));
  } else {  // one launch moves the bytes and counts
    port::store128(place + 16, static_cast<unsigned>(now.destination), kLengthHeader, now.bytes,
                   launch(now.data_flags | now.end_flags));
    port::store128(place + 32, kNothing, kNothing, kNothing, kNothing);
    port::store128(place + 48, kNothing, kNothing, kNothing, kNothing);
    port::store32(place + 64, kNothing);
  }
}

// Two puts without a signal in one segment; both are flushed if one is.
PEERLANE_DEVICE_FN void write_pair(const peerlane_device_ring& ring, unsigned ticket, const segment& first,
                                   const segment& second) {
  const unsigned long long place = place_of(ring, ticket);
  port::store128(place, kCopyHeader, static_cast<unsigned>(first.source >> 32), static_cast<unsigned>(first.source),
                 static_cast<unsigned>(first.destination >> 32));
  port::store128(place + 16, static_cast<unsigned>(first.destination), kLengthHeader, first.bytes,
                 launch(first.data_flags & ~kFlush));
  port::store128(place + 32, kCopyHeader, static_cast<unsigned>(second.source >> 32), static_cast<unsigned>(second.source),
                 static_cast<unsigned>(second.destination >> 32));
  port::store128(place + 48, static_cast<unsigned>(second.destination), kLengthHeader, second.bytes,
                 launch(second.data_flags | second.end_flags | (first.data_flags & kFlush)));
  port::store32(place + 64, kNothing);
}

// Hands over a segment that this thread has written, or other threads before a barrier with it. The engine waits for the
// word of each segment in the order of tickets, so no thread waits for another's segment.
PEERLANE_DEVICE_FN void commit(const peerlane_device_ring& ring, unsigned ticket, bool is_system) {
  port::store32_release(place_of(ring, ticket) + PEERLANE_DEVICE_MARK_AT, ticket, is_system || ring.by_proxy != 0);
}

// Takes the tickets ticket+1 .. ticket+count and waits until there is space for them. Returns 0 or an error.
PEERLANE_DEVICE_FN int take_tickets(const peerlane_device_ring& ring, unsigned count, unsigned long long& ticket) {
  const progress now = poll_progress(ring);  // before the ticket is taken: an older count is only more cautious
  ticket = port::add64(ring.control + PEERLANE_DEVICE_TICKETS_AT, count);
  if (now.error != 0) return -static_cast<int>(now.error);                    // checked now, so that both accesses overlap
  const unsigned freed = static_cast<unsigned>(ticket) + count - ring.count;  // must be completed
  if (!is_before(now.completed, freed)) return 0;
  return wait_completed(ring, freed, true);
}

// Whether this ring can execute such a segment: remote windows need the host thread, and memory of this process.
PEERLANE_DEVICE_FN bool can_carry(const peerlane_device_ring& ring, const segment& made) {
  if (((made.destination | made.source | made.signal) & PEERLANE_DEVICE_REMOTE_BASE) == 0) return true;
  return ring.by_proxy != 0 && (made.destination & made.source & PEERLANE_DEVICE_REMOTE_BASE) == 0;
}

// `is_system`: the caller's earlier writes may be outside of this GPU's memory.
PEERLANE_DEVICE_FN long long post(const peerlane_device_ring& ring, const segment& made, bool is_system) {
  unsigned long long before = 0;
  if (!can_carry(ring, made)) return PEERLANE_DEVICE_EINVAL;
  if (const int code = take_tickets(ring, 1, before)) return code;
  const unsigned ticket = static_cast<unsigned>(before + 1);
  write_segment(ring, ticket, made);
  commit(ring, ticket, is_system);
  return static_cast<long long>(before + 1);
}

PEERLANE_DEVICE_FN bool is_inside(const peerlane_device_window& window, unsigned long long offset,
                                  unsigned long long bytes) {
  return offset <= window.size_bytes && bytes <= window.size_bytes - offset;
}

// 0 or an error.
PEERLANE_DEVICE_FN int make_copy(segment& made, const peerlane_device_window& destination,
                                 unsigned long long destination_offset, const peerlane_device_window& source,
                                 unsigned long long source_offset, unsigned long long bytes, unsigned flags) {
  if (bytes > kMaxBytes) return PEERLANE_DEVICE_EINVAL;
  if (!is_inside(destination, destination_offset, bytes) || !is_inside(source, source_offset, bytes))
    return PEERLANE_DEVICE_ERANGE;
  made.destination = destination.dma + destination_offset;
  made.source = source.dma + source_offset;
  made.bytes = static_cast<unsigned>(bytes);
  if (bytes != 0) made.data_flags = kPitch | ((flags & PEERLANE_DEVICE_ORDERED) != 0 ? kNotPipelined : kPipelined);
  // What goes to another GPU is flushed: a word on another way, to the host say, was seen before the bytes were there.
  if ((flags & PEERLANE_DEVICE_FLUSHED) != 0 || destination.is_outside == PEERLANE_DEVICE_ON_PEER) made.data_flags |= kFlush;
  made.end_flags = kReleaseWord;
  return 0;
}

PEERLANE_DEVICE_FN int add_signal(segment& made, const peerlane_device_window& window, unsigned long long offset,
                                  unsigned value, unsigned flags) {
  if (!is_inside(window, offset, 4)) return PEERLANE_DEVICE_ERANGE;
  if (((window.dma + offset) & 3) != 0) return PEERLANE_DEVICE_EINVAL;
  made.signal = window.dma + offset;
  made.value = value;
  made.kind = (flags & PEERLANE_DEVICE_UNFLUSHED) != 0 ? signal_kind::at_once : signal_kind::settled;
  made.end_flags = kReleaseWord;
  return 0;
}

}  // namespace detail

// ---- Thread scope

// `bytes` (at most 2 GiB) from one window to another. The ticket: the source may be used again; with
// PEERLANE_DEVICE_FLUSHED: and the bytes are visible to everybody.
PEERLANE_DEVICE_FN long long put(const peerlane_device_ring& ring, const peerlane_device_window& destination,
                                 unsigned long long destination_offset, const peerlane_device_window& source,
                                 unsigned long long source_offset, unsigned long long bytes, unsigned flags = 0) {
  detail::segment made;
  if (const int code = detail::make_copy(made, destination, destination_offset, source, source_offset, bytes, flags))
    return code;
  return detail::post(ring, made, source.is_outside != 0);
}

// From `from`, far away, to `to`. Its ticket stands for bytes that are there: wait() for it and read them.
PEERLANE_DEVICE_FN long long get(const peerlane_device_ring& ring, const peerlane_device_window& destination,
                                 unsigned long long destination_offset, const peerlane_device_window& source,
                                 unsigned long long source_offset, unsigned long long bytes, unsigned flags = 0) {
  return put(ring, destination, destination_offset, source, source_offset, bytes, flags | PEERLANE_DEVICE_FLUSHED);
}

// Puts bytes, then writes `value` to the 32-bit word at `offset` of `window`.
PEERLANE_DEVICE_FN long long put_signal(const peerlane_device_ring& ring, const peerlane_device_window& destination,
                                        unsigned long long destination_offset, const peerlane_device_window& source,
                                        unsigned long long source_offset, unsigned long long bytes,
                                        const peerlane_device_window& window, unsigned long long offset, unsigned value,
                                        unsigned flags = 0) {
  detail::segment made;
  if (const int code = detail::make_copy(made, destination, destination_offset, source, source_offset, bytes, flags))
    return code;
  if (const int code = detail::add_signal(made, window, offset, value, flags)) return code;
  return detail::post(ring, made, source.is_outside != 0);
}

// Writes only the word, after all puts of the ring with earlier tickets.
PEERLANE_DEVICE_FN long long signal(const peerlane_device_ring& ring, const peerlane_device_window& window,
                                    unsigned long long offset, unsigned value) {
  detail::segment made;
  if (const int code = detail::add_signal(made, window, offset, value, 0)) return code;
  return detail::post(ring, made, true);
}

// Later transfers of the ring begin after all earlier ones have ended. Does not wait.
PEERLANE_DEVICE_FN long long fence(const peerlane_device_ring& ring) {
  detail::segment made;
  made.destination = ring.spare;
  made.source = ring.spare + 32;
  made.bytes = 4;
  made.data_flags = detail::kPitch | detail::kNotPipelined | detail::kFlush;
  made.end_flags = detail::kReleaseWord;
  return detail::post(ring, made, true);
}

// Waits for a ticket. If `ticket` is an error, returns the error.
PEERLANE_DEVICE_FN int wait(const peerlane_device_ring& ring, long long ticket) {
  if (ticket <= 0) return ticket < 0 ? static_cast<int>(ticket) : PEERLANE_DEVICE_EINVAL;
  return detail::wait_completed(ring, static_cast<unsigned>(ticket), false);
}

// Waits until all earlier transfers of the ring, by any thread, are visible to everybody. Posts one segment.
PEERLANE_DEVICE_FN int quiet(const peerlane_device_ring& ring) {
  detail::segment made;
  made.end_flags = detail::kReleaseWord | detail::kFlush;
  return wait(ring, detail::post(ring, made, true));
}

// Waits until the 32-bit word at `offset` has reached `value` (cyclic). Kernels must be able to access the window.
PEERLANE_DEVICE_FN int wait_signal(const peerlane_device_window& window, unsigned long long offset, unsigned value,
                                   unsigned long long timeout_ns) {
  if (!detail::is_inside(window, offset, 4)) return PEERLANE_DEVICE_ERANGE;
  if (window.address == 0 || ((window.address + offset) & 3) != 0) return PEERLANE_DEVICE_EINVAL;
  unsigned long long begin_ns = 0;
  for (unsigned polls = 1; detail::is_before(port::load32_acquire(window.address + offset), value); ++polls) {
    port::pause();
    if (polls % 64 != 0) continue;
    const unsigned long long now_ns = port::time_ns();
    if (begin_ns == 0) begin_ns = now_ns;
    if (now_ns - begin_ns > timeout_ns) return PEERLANE_DEVICE_ETIMEDOUT;
  }
  return 0;
}

// ---- A ring that one thread owns: no atomics, so the engine begins as soon as possible

struct owned_ring {
  peerlane_device_ring ring;
  unsigned long long last;  // ticket
  unsigned completed;       // last value that was read
};

// Takes a ring. Nobody else may post to it until give_back(). PEERLANE_DEVICE_EBUSY: a thread has taken a ticket and has not
// posted yet. Reads each segment that is not completed.
PEERLANE_DEVICE_FN int own(const peerlane_device_ring& ring, owned_ring& mine) {
  mine.ring = ring;
  mine.last = port::load64(ring.control + PEERLANE_DEVICE_TICKETS_AT);
  const detail::progress now = detail::poll_progress(ring);
  mine.completed = now.completed;
  if (now.error != 0) return -static_cast<int>(now.error);
  for (unsigned ticket = now.completed; ticket != static_cast<unsigned>(mine.last);)
    if (++ticket, port::load32_acquire(detail::place_of(ring, ticket) + PEERLANE_DEVICE_MARK_AT) != ticket)
      return PEERLANE_DEVICE_EBUSY;
  return 0;
}
PEERLANE_DEVICE_FN void give_back(const owned_ring& mine) {
  port::store64(mine.ring.control + PEERLANE_DEVICE_TICKETS_AT, mine.last);
  port::fence_system();
}

namespace detail {
PEERLANE_DEVICE_FN long long post(owned_ring& mine, const segment& made, bool is_system) {
  const unsigned ticket = static_cast<unsigned>(mine.last + 1), freed = ticket - mine.ring.count;
  if (!can_carry(mine.ring, made)) return PEERLANE_DEVICE_EINVAL;
  if (is_before(mine.completed, freed)) {
    if (const int code = wait_completed(mine.ring, freed, true)) return code;
    mine.completed = poll_progress(mine.ring).completed;
  }
  write_segment(mine.ring, ticket, made);
  commit(mine.ring, ticket, is_system);
  return static_cast<long long>(++mine.last);
}
}  // namespace detail

PEERLANE_DEVICE_FN long long put(owned_ring& mine, const peerlane_device_window& destination,
                                 unsigned long long destination_offset, const peerlane_device_window& source,
                                 unsigned long long source_offset, unsigned long long bytes, unsigned flags = 0) {
  detail::segment made;
  if (const int code = detail::make_copy(made, destination, destination_offset, source, source_offset, bytes, flags))
    return code;
  return detail::post(mine, made, source.is_outside != 0);
}
PEERLANE_DEVICE_FN long long put_signal(owned_ring& mine, const peerlane_device_window& destination,
                                        unsigned long long destination_offset, const peerlane_device_window& source,
                                        unsigned long long source_offset, unsigned long long bytes,
                                        const peerlane_device_window& window, unsigned long long offset, unsigned value,
                                        unsigned flags = 0) {
  detail::segment made;
  if (const int code = detail::make_copy(made, destination, destination_offset, source, source_offset, bytes, flags))
    return code;
  if (const int code = detail::add_signal(made, window, offset, value, flags)) return code;
  return detail::post(mine, made, source.is_outside != 0);
}
PEERLANE_DEVICE_FN int wait(const owned_ring& mine, long long ticket) { return wait(mine.ring, ticket); }
PEERLANE_DEVICE_FN int quiet(owned_ring& mine) {
  detail::segment made;
  made.end_flags = detail::kReleaseWord | detail::kFlush;
  return wait(mine.ring, detail::post(mine, made, true));
}

// ---- All threads of a full warp, each with its own put. Two puts share a ticket, and the warp takes all tickets together:
// the fastest form for many small puts. If one thread has an error, all threads get an error and nothing is posted. The
// ticket covers the thread's own put.
PEERLANE_DEVICE_FN long long put_each(const peerlane_device_ring& ring, const peerlane_device_window& destination,
                                      unsigned long long destination_offset, const peerlane_device_window& source,
                                      unsigned long long source_offset, unsigned long long bytes, unsigned flags = 0) {
  detail::segment made;
  int code = detail::make_copy(made, destination, destination_offset, source, source_offset, bytes, flags);
  if (code == 0 && !detail::can_carry(ring, made)) code = PEERLANE_DEVICE_EINVAL;
  if (port::is_any(code != 0)) return code != 0 ? code : PEERLANE_DEVICE_EINVAL;
  const bool is_system = port::is_any(source.is_outside != 0);
  const bool has_pairs = port::warp_threads() > 1;
  const unsigned place = port::place_in_warp();
  unsigned long long before = 0;
  long long taken = 0;
  if (place == 0) {
    taken = detail::take_tickets(ring, has_pairs ? port::warp_threads() / 2 : 1, before);
    if (taken == 0) taken = static_cast<long long>(before) + 1;
  }
  taken = port::from_first(taken);
  if (taken < 0) return taken;
  taken += place / 2;
  detail::segment next = made;
  next.destination = port::from_next(made.destination);
  next.source = port::from_next(made.source);
  const unsigned long long rest = port::from_next(made.bytes | static_cast<unsigned long long>(made.data_flags) << 32);
  next.bytes = static_cast<unsigned>(rest);
  next.data_flags = static_cast<unsigned>(rest >> 32);
  if (place % 2 != 0) return taken;
  if (has_pairs) detail::write_pair(ring, static_cast<unsigned>(taken), made, next);
  else detail::write_segment(ring, static_cast<unsigned>(taken), made);
  detail::commit(ring, static_cast<unsigned>(taken), is_system);
  return taken;
}

// ---- One call by all threads of a warp or a block

#define PEERLANE_DEVICE_WARP(call)                 \
  long long answer = 0;                            \
  port::sync_warp();                               \
  if (port::place_in_warp() == 0) answer = (call); \
  return port::from_first(answer)
#define PEERLANE_DEVICE_BLOCK(call)               \
  long long answer = 0;                           \
  port::sync_block();                             \
  if (port::is_first_of_block()) answer = (call); \
  return answer

PEERLANE_DEVICE_FN long long put_warp(const peerlane_device_ring& ring, const peerlane_device_window& destination,
                                      unsigned long long destination_offset, const peerlane_device_window& source,
                                      unsigned long long source_offset, unsigned long long bytes, unsigned flags = 0) {
  PEERLANE_DEVICE_WARP(put(ring, destination, destination_offset, source, source_offset, bytes, flags));
}
PEERLANE_DEVICE_FN long long put_block(const peerlane_device_ring& ring, const peerlane_device_window& destination,
                                       unsigned long long destination_offset, const peerlane_device_window& source,
                                       unsigned long long source_offset, unsigned long long bytes, unsigned flags = 0) {
  PEERLANE_DEVICE_BLOCK(put(ring, destination, destination_offset, source, source_offset, bytes, flags));
}
PEERLANE_DEVICE_FN long long get_warp(const peerlane_device_ring& ring, const peerlane_device_window& destination,
                                      unsigned long long destination_offset, const peerlane_device_window& source,
                                      unsigned long long source_offset, unsigned long long bytes, unsigned flags = 0) {
  PEERLANE_DEVICE_WARP(get(ring, destination, destination_offset, source, source_offset, bytes, flags));
}
PEERLANE_DEVICE_FN long long get_block(const peerlane_device_ring& ring, const peerlane_device_window& destination,
                                       unsigned long long destination_offset, const peerlane_device_window& source,
                                       unsigned long long source_offset, unsigned long long bytes, unsigned flags = 0) {
  PEERLANE_DEVICE_BLOCK(get(ring, destination, destination_offset, source, source_offset, bytes, flags));
}
PEERLANE_DEVICE_FN long long put_signal_warp(const peerlane_device_ring& ring, const peerlane_device_window& destination,
                                             unsigned long long destination_offset, const peerlane_device_window& source,
                                             unsigned long long source_offset, unsigned long long bytes,
                                             const peerlane_device_window& window, unsigned long long offset, unsigned value,
                                             unsigned flags = 0) {
  PEERLANE_DEVICE_WARP(
      put_signal(ring, destination, destination_offset, source, source_offset, bytes, window, offset, value, flags));
}
PEERLANE_DEVICE_FN long long put_signal_block(const peerlane_device_ring& ring, const peerlane_device_window& destination,
                                              unsigned long long destination_offset, const peerlane_device_window& source,
                                              unsigned long long source_offset, unsigned long long bytes,
                                              const peerlane_device_window& window, unsigned long long offset,
                                              unsigned value, unsigned flags = 0) {
  PEERLANE_DEVICE_BLOCK(
      put_signal(ring, destination, destination_offset, source, source_offset, bytes, window, offset, value, flags));
}
PEERLANE_DEVICE_FN long long signal_warp(const peerlane_device_ring& ring, const peerlane_device_window& window,
                                         unsigned long long offset, unsigned value) {
  PEERLANE_DEVICE_WARP(signal(ring, window, offset, value));
}
PEERLANE_DEVICE_FN long long signal_block(const peerlane_device_ring& ring, const peerlane_device_window& window,
                                          unsigned long long offset, unsigned value) {
  PEERLANE_DEVICE_BLOCK(signal(ring, window, offset, value));
}
PEERLANE_DEVICE_FN long long fence_warp(const peerlane_device_ring& ring) { PEERLANE_DEVICE_WARP(fence(ring)); }
PEERLANE_DEVICE_FN long long fence_block(const peerlane_device_ring& ring) { PEERLANE_DEVICE_BLOCK(fence(ring)); }
PEERLANE_DEVICE_FN long long wait_warp(const peerlane_device_ring& ring, long long ticket) {
  PEERLANE_DEVICE_WARP(wait(ring, ticket));
}
PEERLANE_DEVICE_FN long long quiet_warp(const peerlane_device_ring& ring) { PEERLANE_DEVICE_WARP(quiet(ring)); }
PEERLANE_DEVICE_FN long long wait_signal_warp(const peerlane_device_window& window, unsigned long long offset,
                                              unsigned value, unsigned long long timeout_ns) {
  PEERLANE_DEVICE_WARP(wait_signal(window, offset, value, timeout_ns));
}
#undef PEERLANE_DEVICE_WARP
#undef PEERLANE_DEVICE_BLOCK

// When these return, the wait is over for the whole block.
PEERLANE_DEVICE_FN long long wait_block(const peerlane_device_ring& ring, long long ticket) {
  const long long answer = port::is_first_of_block() ? wait(ring, ticket) : 0;
  port::sync_block();
  return answer;
}
PEERLANE_DEVICE_FN long long quiet_block(const peerlane_device_ring& ring) {
  port::sync_block();
  const long long answer = port::is_first_of_block() ? quiet(ring) : 0;
  port::sync_block();
  return answer;
}
PEERLANE_DEVICE_FN long long wait_signal_block(const peerlane_device_window& window, unsigned long long offset,
                                               unsigned value, unsigned long long timeout_ns) {
  const long long answer = port::is_first_of_block() ? wait_signal(window, offset, value, timeout_ns) : 0;
  port::sync_block();
  return answer;
}

}  // namespace peerlane::device
